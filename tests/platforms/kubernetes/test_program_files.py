"""The files of a program's folder that travel to a cluster, or why they do not."""

from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.platforms.kubernetes import program_files
from coach.platforms.kubernetes.program_files import LARGEST, MAX_FILES, keys, names, sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "train.py",
        "nets/res.py",
        "conf/a.yaml",
        "data.bin",
        ".env",
        ".git/config.txt",
        "env/lib/x.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "env/pyvenv.cfg").touch()
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--lr", "0.1"],
        ["torchrun", "./train.py"],
        ["python", "-m", "nets.res"],
        ["python", "-m", "train"],
    ],
)
def test_a_command_that_names_a_file_takes_the_folders_sources_along(folder: Path, command: list[str]) -> None:
    found = sources(folder, command)
    assert found.keys() == {"train.py", "nets/res.py", "conf/a.yaml"}, "no secrets, data or environments"
    assert found["nets/res.py"] == b"nets/res.py"


def test_a_file_that_the_command_names_goes_along_whatever_it_is(folder: Path) -> None:
    assert "data.bin" in sources(folder, ["./train.py", "data.bin"])


@pytest.mark.parametrize("command", [["python", "-m", "torch.distributed.run"], ["/opt/train"], ["../train.py"]])
def test_a_command_of_the_image_takes_nothing_along(folder: Path, command: list[str]) -> None:
    assert sources(folder, command) == {}


def test_a_key_says_where_the_file_is() -> None:
    given = ["train.py", "nets/res.py", "a/b/c.yaml"]
    assert names(keys(given).values()) == keys(given)
    assert all("/" not in key for key in keys(given).values())
    assert names(["..-.-..-.-etc", "a-.-..-.-b"]) == {}, "none leads out of the folder"


def test_what_no_config_map_carries_is_refused_with_the_next_step(folder: Path) -> None:
    (folder / "large.json").write_bytes(b" " * LARGEST)
    with pytest.raises(UserError, match=r"more than the 200 files and 900,000 bytes .* put the program into the image"):
        sources(folder, ["python", "train.py"])
    (folder / "large.json").unlink()
    for number in range(MAX_FILES):
        (folder / f"part_{number}.py").touch()
    with pytest.raises(UserError, match="put the program into the image"):
        sources(folder, ["python", "train.py"])
    (folder / "mein skript.py").touch()
    with pytest.raises(UserError, match=r"mein skript\.py: a name that a ConfigMap cannot carry"):
        sources(folder, ["python", "mein skript.py"])


def test_it_is_said_which_they_are(folder: Path) -> None:
    found = sources(folder, ["python", "train.py"])
    assert program_files.words(found) == "3 files, 30 bytes: train.py, conf/a.yaml, nets/res.py"


def test_links_that_lead_out_of_the_folder_are_not_sent_and_are_named(tmp_path: Path) -> None:
    folder, private = tmp_path / "repo", tmp_path / "private"
    for one in (folder / "data", private):
        one.mkdir(parents=True)
    (folder / "train.py").write_text("import util")
    (folder / "util.py").write_text("x = 1")
    (private / "secret.json").write_text("the secret")
    (folder / "config.json").symlink_to(private / "secret.json")
    (folder / "data/more.txt").symlink_to("../../private/secret.json")
    (folder / "again.py").symlink_to("config.json")
    (folder / "passwd.txt").symlink_to("/etc/passwd")
    (folder / "absolute.py").symlink_to(folder / "util.py")
    (folder / "away").symlink_to(private)
    found = program_files.sources(folder, ["python", "train.py"])
    assert sorted(found) == ["absolute.py", "train.py", "util.py"]
    left = program_files.left_out(folder)
    assert sorted(left) == ["again.py", "config.json", "data/more.txt", "passwd.txt"]
    assert "left out, links that lead out of the folder: again.py" in program_files.words(found, left)
    with pytest.raises(UserError, match="a link that leads out of"):
        program_files.sources(folder, ["python", "again.py"])
    with pytest.raises(UserError, match="a link that leads out of"):
        program_files.sources(folder, ["python", "train.py", "away/secret.json"])

"""Data of another format than its job file says is refused before anything starts, whatever stands at its path."""

import os
import threading
from pathlib import Path

import pytest

from coach.core.spec.training import DataFormat
from coach.jobfiles.data_format import mismatch
from coach.jobfiles.load import MAX_HASHED_BYTES, load_jobs
from tests.jobfiles import datasets
from tests.jobfiles.test_load import GOOD, load_mistakes

DIGITS, IDX, CIFAR10, NPZ = DataFormat.DIGITS_JSON, DataFormat.IDX, DataFormat.CIFAR10, DataFormat.NPZ


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, tuple[Path, DataFormat]]:
    return {
        "digits": (datasets.digits(tmp_path / "digits"), DIGITS),
        "idx": (datasets.idx(tmp_path / "idx"), IDX),
        "idx.gz": (datasets.idx(tmp_path / "packed", packed=True), IDX),
        "cifar10": (datasets.cifar10(tmp_path / "cifar"), CIFAR10),
        "cifar10.tgz": (datasets.cifar10_archive(tmp_path / "c.tar.gz"), CIFAR10),
        "npz": (datasets.npz(tmp_path / "a.npz"), NPZ),
    }


def job(folder: Path, data: str) -> Path:
    (folder / "model.py").write_text("def net(): ...\n")
    (folder / "job.yaml").write_text(GOOD.replace("format: digits8x8", data))
    return folder / "job.yaml"


def test_data_of_the_format_that_its_file_says_is_accepted(
    sets: dict[str, tuple[Path, DataFormat]], tmp_path: Path
) -> None:
    for path, of in sets.values():
        assert len(load_jobs([job(tmp_path, f"format: {of}, uri: {path.name}")])) == 1


def test_data_of_another_format_is_told_at_the_format_with_the_right_one(
    sets: dict[str, tuple[Path, DataFormat]], tmp_path: Path
) -> None:
    for path, of in sets.values():
        for said in (DIGITS, IDX, CIFAR10, NPZ):
            if said is not of:
                file = job(tmp_path, f"format: {said}, uri: {path.name}")
                assert load_mistakes(file) == [
                    f'{file}:7:18 spec.data.format: the data has another format ("{said}", but {path.name} holds {of})'
                    f" - {of}; then: coach validate {file}"
                ]


def test_what_the_model_file_reads_may_be_anything(sets: dict[str, tuple[Path, DataFormat]]) -> None:
    assert [mismatch(path, DataFormat.CUSTOM) for path, _ in sets.values()] == [None] * len(sets)


NPZ_RIGHT = "NumPy's archive, as numpy.savez writes it, with x_train, y_train, x_test and y_test"
IDX_RIGHT = "a folder with MNIST's four IDX files, compressed or not"


@pytest.mark.parametrize(
    ("made", "of", "uri", "message"),
    [
        ("3.json", DIGITS, "d", 'no such file ("{d}/3.json") - a folder with 0.json to 9.json, which `make data` gets'),
        ("t10k-images-idx3-ubyte", IDX, "d", 'no such file ("{d}/t10k-images-idx3-ubyte") - ' + IDX_RIGHT),
        ("", IDX, "d/t10k-images-idx3-ubyte", f"not a folder (t10k-images-idx3-ubyte is a file) - {IDX_RIGHT}"),
        ("data_batch_1.bin", CIFAR10, "d", 'no such file ("{d}/data_batch_1.bin") - '
         "a folder with the six .bin files of CIFAR-10's binary version, or its .tar.gz"),
        ("", NPZ, "d/pickle", f"not an npz archive (pickle starts with bytes 80 04 4e 2e) - {NPZ_RIGHT}"),
        ("", NPZ, "d/empty", f"not an npz archive (empty is empty) - {NPZ_RIGHT}"),
        ("", NPZ, "d/folder", f"not a file (folder is a folder) - {NPZ_RIGHT}"),
    ],
)  # fmt: skip
def test_what_is_of_no_format_is_one_mistake_with_the_next_command(
    tmp_path: Path, made: str, of: DataFormat, uri: str, message: str
) -> None:
    folder = tmp_path / "d"
    {DIGITS: datasets.digits, CIFAR10: datasets.cifar10}.get(of, datasets.idx)(folder)
    (folder / "pickle").write_bytes(b"\x80\x04N.")
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    (folder / made).unlink() if made else None
    file = job(tmp_path, f"format: {of}, uri: {uri}")
    column = GOOD.splitlines()[6].index("format") + len(f"format: {of}, uri: ") + 1
    wrong = message.replace("{d}", str(folder))
    assert load_mistakes(file) == [f"{file}:7:{column} spec.data.uri: {wrong}; then: coach validate {file}"]


def test_a_remote_uri_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.jobfiles.load.mismatch", lambda *_: pytest.fail("looked at"))
    for uri in ("s3://bucket/a.npz", "gs://bucket/mnist"):
        assert len(load_jobs([job(tmp_path, f"format: npz, uri: '{uri}'")])) == 1
    assert len(load_jobs([job(tmp_path, "format: npz, uri: nowhere")], check_files=False)) == 1


# -- whatever stands at the path -----------------------------------------------------------------------------


@pytest.mark.parametrize("of", [DIGITS, IDX, CIFAR10, NPZ, DataFormat.CUSTOM])
@pytest.mark.parametrize("uri", ["/dev/zero", "/dev/null", "fifo"])
def test_devices_and_fifos_are_refused_unopened(tmp_path: Path, of: DataFormat, uri: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    [message] = load_mistakes(job(tmp_path, f"format: {of}, uri: {uri}"))
    assert "spec.data.uri: not a file" in message


def test_a_fifo_inside_of_a_folder_is_refused_unopened(tmp_path: Path) -> None:
    path = datasets.digits(tmp_path / "d")
    (path / "0.json").unlink()
    os.mkfifo(path / "0.json")
    [message] = load_mistakes(job(tmp_path, "format: digits-json, uri: d"))
    assert f'no such file ("{path}/0.json")' in message


def test_a_fifo_that_takes_a_files_place_meanwhile_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "a.npz")
    regular = Path(__file__).stat()
    monkeypatch.setattr(Path, "stat", lambda _, **__: regular)
    done = threading.Event()

    def look() -> None:
        found = mismatch(tmp_path / "a.npz", NPZ)
        if found is not None and found.problem == "not a file":
            done.set()

    threading.Thread(target=look, daemon=True).start()
    assert done.wait(20)


def test_symlinks_that_go_round_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    [message] = load_mistakes(job(tmp_path, "format: npz, uri: loop"))
    assert "spec.data.uri: not a path" in message
    path = datasets.digits(tmp_path / "d")
    (path / "0.json").unlink()
    (path / "0.json").symlink_to("0.json")
    [message] = load_mistakes(job(tmp_path, "format: digits-json, uri: d"))
    assert f'spec.data.uri: cannot be read ("{path}/0.json": Too many levels of symbolic links)' in message


def test_of_an_endless_file_only_a_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 1 TiB; to hash it would take hours."""
    (tmp_path / "a.npz").write_bytes(b"PK\3\4")
    os.truncate(tmp_path / "a.npz", 1 << 40)
    read = []
    monkeypatch.setattr(os, "pread", lambda *args, real=os.pread: read.append(len(got := real(*args))) or got)
    load_jobs([job(tmp_path, f"format: npz, uri: a.npz, sha256: '{'0' * 64}'")])
    assert sum(read) == 4


def test_the_hash_of_a_large_file_is_left_to_the_functions(tmp_path: Path) -> None:
    path = datasets.npz(tmp_path / "a.npz", samples=MAX_HASHED_BYTES // 16)
    assert path.stat().st_size > MAX_HASHED_BYTES
    data = f"format: npz, uri: a.npz, sha256: '{'0' * 64}'"
    assert load_jobs([job(tmp_path, data)])[0].spec.spec.data.sha256 == "0" * 64


def test_a_file_gives_no_more_of_itself_away_than_four_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("secret: 12345")
    [message] = load_mistakes(job(tmp_path, "format: npz, uri: a.npz"))
    assert "a.npz starts with bytes 73 65 63 72" in message
    assert "secret" not in message and "12345" not in message

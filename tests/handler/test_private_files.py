"""What is in the state folder is its owner's alone, whatever the umask is and whoever made the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.core.errors import PermanentError
from coach.handler import endpoint
from coach.handler.private_files import make_folder
from coach.handler.state.state_directory import StateDirectory
from coach.service.doctor import Status, checks
from tests.report.recorded_jobs import steady_job

#: Modes that a umask of 022 leaves.
OPEN_FOLDER, OPEN_FILE = 0o755, 0o644


@pytest.fixture(params=[0, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def home(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "home")


def modes(folder: Path) -> dict[str, int]:
    """The mode of everything in a folder, and its own at "."."""
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


def private(folder: Path) -> set[str]:
    """What is in a folder. Fails where others may do anything with it."""
    found = modes(folder)
    assert found == {name: 0o700 if (folder / name).is_dir() else 0o600 for name in found}
    return set(found)


def test_what_a_handler_and_a_service_write_is_private(home: StateDirectory, umask: int) -> None:
    with home.planning(), endpoint.claimed(home):
        journal = home.open_journal()
        second = home.open_journal()
        journal.append(steady_job().history)
        home.make_folders("digits")
        token = endpoint.own_token(home)
        endpoint.publish(home, endpoint.Endpoint("http://here", 1, str(token), "0"))
        made = private(home.path)
        second.close()
        journal.close()
    assert {"journal.db", "journal.db-wal", "journal.db-shm", "journal.lock", "journal-2.db"} <= made
    assert {
        "jobs/digits/logs",
        "jobs/digits/checkpoints",
        "lock",
        "service.lock",
        "service.json",
        "token",
    } <= made


def test_folders_above_that_are_missing_are_private_too_and_those_there_stay(tmp_path: Path, umask: int) -> None:
    make_folder(tmp_path / "there")
    (tmp_path / "there").chmod(OPEN_FOLDER)
    make_folder(tmp_path / "there" / "a" / "b")
    assert modes(tmp_path / "there") == {".": OPEN_FOLDER, "a": 0o700, "a/b": 0o700}


def test_a_folder_of_an_earlier_coach_is_tightened_and_what_else_is_in_it_stays(home: StateDirectory) -> None:
    home.open_journal().close()
    home.make_folders("digits")
    (home.checkpoints("digits") / "digits.1.ckpt").touch()
    foreign = home.path / "notes"
    foreign.mkdir()
    link = home.logs("digits") / "link.log"
    outside = home.path.parent / "outside"
    outside.touch()
    link.symlink_to(outside)
    for path in (home.path, *home.path.rglob("*"), outside):
        path.chmod(OPEN_FOLDER if path.is_dir() else OPEN_FILE)
    home.past()
    assert modes(home.path.parent)["outside"] == OPEN_FILE
    assert modes(home.path).pop("notes") == OPEN_FOLDER
    foreign.rmdir()
    link.unlink()
    assert "jobs/digits/checkpoints/digits.1.ckpt" in private(home.path)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o775, 0o702])
def test_a_folder_in_which_others_may_write_is_refused(home: StateDirectory, mode: int) -> None:
    home.path.mkdir()
    home.path.chmod(mode)
    for use in (home.past, home.planning().__enter__):
        with pytest.raises(PermanentError, match=rf"other users may write in it \(mode {mode:04o}\).*chmod go-rwx"):
            use()
    assert modes(home.path) == {".": mode}


def test_a_folder_of_another_user_is_refused(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    home.path.mkdir(0o700)
    owner = home.path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    for use in (home.past, home.planning().__enter__):
        with pytest.raises(PermanentError, match=f"belongs to another user \\(uid {owner}\\); set COACH_HOME"):
            use()


def test_doctor_says_that_others_may_write_and_what_to_do(home: StateDirectory) -> None:
    home.path.mkdir()
    home.path.chmod(0o777)
    found = next(check for check in checks(home) if check.name == "state folder")
    assert (found.status, "other users may write" in found.found) == (Status.FAILED, True)
    assert found.next_step == f"if you trust what is in it: chmod go-rwx {home.path}"

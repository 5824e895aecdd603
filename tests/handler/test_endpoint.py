"""The token is its owner's alone, and is found where other commands look for it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from coach.core.errors import PermanentError, UserError
from coach.handler import endpoint
from coach.handler.private_files import make_folder
from coach.handler.state.state_directory import StateDirectory

CHOSEN = "a-token-that-somebody-has-chosen"


@pytest.fixture
def home(tmp_path: Path) -> StateDirectory:
    make_folder(tmp_path / "home")
    return StateDirectory(tmp_path / "home")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
def test_a_token_that_others_could_read_is_replaced_and_that_is_said(
    home: StateDirectory, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = endpoint.own_token(home)
    before = endpoint.read_token(file)
    assert endpoint.read_token(endpoint.own_token(home)) == before and not caplog.messages
    file.chmod(mode)
    with caplog.at_level(logging.WARNING):
        after = endpoint.read_token(endpoint.own_token(home))
    assert after != before and file.stat().st_mode & 0o777 == 0o600
    assert "it is replaced" in caplog.text and before not in caplog.text and after not in caplog.text


def test_a_token_may_come_from_a_pipe_and_is_then_where_other_commands_find_it(home: StateDirectory) -> None:
    reader, writer = os.pipe()
    os.write(writer, f"{CHOSEN}\n".encode())
    os.close(writer)
    try:
        file = endpoint.chosen_token(home, Path(f"/dev/fd/{reader}"))
    finally:
        os.close(reader)
    assert file == home.path / "token" and file.stat().st_mode & 0o777 == 0o600
    assert [endpoint.read_token(file) for _ in range(2)] == [CHOSEN, CHOSEN]  # as often as it is asked for


def test_a_chosen_file_stays_where_it_is(home: StateDirectory, tmp_path: Path) -> None:
    file = tmp_path / "chosen"
    file.write_text(CHOSEN)
    file.chmod(0o600)
    assert endpoint.chosen_token(home, file) == file and not (home.path / "token").exists()


def test_a_pipe_with_no_token_leaves_the_old_one(home: StateDirectory) -> None:
    before = endpoint.own_token(home).read_text()
    reader, writer = os.pipe()
    os.close(writer)
    try:
        with pytest.raises(UserError, match="at least 20 characters"):
            endpoint.chosen_token(home, Path(f"/dev/fd/{reader}"))
    finally:
        os.close(reader)
    with pytest.raises(PermanentError, match="cannot be read as a token"):
        endpoint.chosen_token(home, home.path / "nothing")
    assert (home.path / "token").read_text() == before

"""What `make all-tests` and `make soak` write down: counted right, and never run again for a better result."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.standard

ROOT = Path(__file__).parents[1]
GO = """
=== RUN   TestLess
--- PASS: TestLess (0.00s)
=== RUN   TestPack
    --- FAIL: TestPack/one (0.01s)
--- FAIL: TestPack (0.01s)
--- SKIP: TestReal (0.00s)
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """It works in an empty folder."""
    found = importlib.util.spec_from_file_location("test_record", ROOT / "scripts/test_record.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "test_record", module)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    return module


@pytest.fixture
def record(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, at a commit of that name."""
    monkeypatch.setattr(script, "commit", lambda: "abc")
    return script


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ("12 passed in 4.20s", (12, 0, 0)),
        ("logic | 3 failed, 12 passed, 4 skipped, 9 deselected, 1 error in 64.20s (0:01:04)", (20, 4, 4)),
        ("==== 2 passed in 0.10s ====\n1 failed in 3s\n", (3, 1, 0)),
        (GO, (4, 2, 1)),
        ("no tests ran in 0.1s", (0, 0, 0)),
    ],
)
def test_tests_are_counted_by_the_last_words_of_pytest_and_by_those_of_go(
    record: ModuleType, said: str, counts: tuple[int, int, int]
) -> None:
    assert record.counted(said) == counts


def test_a_stopped_run_goes_on_where_it_was_and_a_failure_stays_one(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = {name: ["sh", "-c", f"echo {name} >> ran; {then}"] for name, then in (
        ("one", "echo 3 passed in 1s"), ("two", "echo 1 failed, 2 passed in 1s; exit 1"), ("three", "true")
    )}  # fmt: skip
    run, stopped = record.run, []

    def stops_once(name: str, *rest: object) -> object:
        if name == "three" and not stopped:
            stopped.append(name)
            raise KeyboardInterrupt
        return run(name, *rest)

    monkeypatch.setattr(record, "parts", lambda: commands)
    monkeypatch.setattr(record, "run", stops_once)
    with pytest.raises(KeyboardInterrupt):
        record.main("all")
    assert not list((tmp_path / "results").iterdir())
    assert record.main("all") == record.main("all") == 1
    assert (tmp_path / "ran").read_text().split() == ["one", "two", "three"]
    rows = [
        line.split("|")[1:7] for line in (tmp_path / "results/all-tests.md").read_text().splitlines() if "|" in line
    ]
    assert [[cell.strip() for i, cell in enumerate(row) if i != 1] for row in rows[2:]] == [
        ["one", "3", "0", "0", "0"],
        ["two", "3", "1", "0", "1"],
        ["three", "0", "0", "0", "0"],
        ["**all**", "6", "1", "0", "1 not 0"],
    ]


def test_a_soak_shows_the_runs_of_earlier_commits_and_goes_on_from_its_table(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number, (commit, failures) in enumerate({"abc": 1, "def": 0}.items()):
        made = record.Result("1", f"2026-11-28 18:0{number}", failures, 5, failures, 0, 9.0, 8.0)
        monkeypatch.setattr(record, "commit", lambda commit=commit: commit)
        monkeypatch.setattr(record, "run", lambda *_, made=made: made)
        assert record.main("soak", "1") == failures
    text = (tmp_path / "results/test-soak.md").read_text()
    assert [line.split(" | ")[0] for line in text.splitlines()[-3:]] == ["| abc, 1", "| def, 1", "| **all**"]
    shutil.rmtree(tmp_path / ".cache")
    monkeypatch.setattr(record, "run", lambda *_: pytest.fail("it is in the table"))
    assert record.main("soak", "1") == 0
    assert (tmp_path / "results/test-soak.md").read_text() == text


def test_a_commit_of_the_tables_alone_is_tested_as_the_one_before(script: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    for name in ("code.py", "results/test-soak.md"):
        (tmp_path / name).write_text("1")
        git("add", "-A")
        git("commit", "-qm", name)
    assert script.commit() == git("rev-parse", "--short=12", "HEAD~").strip()
    (tmp_path / "code.py").write_text("2")
    with pytest.raises(SystemExit, match="commit first"):
        script.commit()

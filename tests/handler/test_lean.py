"""What `benchmarks.lean` measures, on few jobs: a past and a killed handler's jobs are written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import lean


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "JOBS", 3)
    monkeypatch.setattr(lean, "EPOCHS", 12)


def test_a_past_is_read_with_and_without_snapshots(tmp_path: Path) -> None:
    lean.write(tmp_path / "journal.db")
    assert lean.measure_past(str(tmp_path))["seconds"] > 0
    lean.remember(tmp_path / "journal.db")
    assert lean.measure_past(str(tmp_path))["seconds"] > 0


def test_the_jobs_of_a_killed_handler_are_read_and_decided(tmp_path: Path) -> None:
    lean.write_living(tmp_path / "journal.db")
    found = lean.measure_killed(str(tmp_path))
    assert found["decided"] > found["seconds"] > 0

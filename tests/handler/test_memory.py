"""What `benchmarks.service.handler_memory` measures, on few jobs: stored and killed jobs are written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.service import handler_memory


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_memory, "JOBS", 3)
    monkeypatch.setattr(handler_memory, "EPOCHS", 12)


def test_a_past_is_read_with_and_without_snapshots(tmp_path: Path) -> None:
    handler_memory.write(tmp_path / "journal.db")
    assert handler_memory.measure_past(str(tmp_path))["seconds"] > 0
    handler_memory.save_snapshots(tmp_path / "journal.db")
    assert handler_memory.measure_past(str(tmp_path))["seconds"] > 0


def test_the_jobs_of_a_killed_handler_are_read_and_decided(tmp_path: Path) -> None:
    handler_memory.write_living(tmp_path / "journal.db")
    found = handler_memory.measure_killed(str(tmp_path))
    assert found["decided"] > found["seconds"] > 0

"""A state folder on a file system that is full: `coach run` ends with one line, and goes on when there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from coach.core.errors import CoachError
from coach.core.jobs.job import Job
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.chaos.processes import gone, marked
from tests.chaos.runs import ROOT
from tests.chaos.stage import PATIENCE, job_file, losses
from tests.required import small_disk

pytestmark = [
    pytest.mark.root,
    pytest.mark.mxnet,
    pytest.mark.usefixtures("functions"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateDirectory]:
    """A state folder on a file system of four megabytes."""
    with small_disk(tmp_path / "disk", 4) as place:
        yield StateDirectory(place / "home")


def job_of(home: StateDirectory) -> Job | None:
    with contextlib.suppress(CoachError):
        journal = Journal.read(home.journal(1))
        try:
            return journal.jobs().get("long")
        finally:
            journal.close()
    return None


def test_a_full_disk_ends_a_run_in_one_line_and_with_room_it_goes_on(home: StateDirectory, tmp_path: Path) -> None:
    temporary, file, filler = tmp_path / "tmp", tmp_path / "job.yaml", home.path.parent / "filler"
    temporary.mkdir()
    file.write_text(yaml.safe_dump(job_file("long", probing=False)))
    environment = {**os.environ, "COACH_HOME": str(home.path), "TMPDIR": str(temporary)}
    coach = [sys.executable, "-m", "coach.cli.main"]
    with subprocess.Popen(
        [*coach, "run", str(file)], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as run:  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not ((job := job_of(home)) and len(job.epochs) >= 2):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as full:
            while full.write(b"x" * 4096):
                pass
        said = run.communicate(timeout=PATIENCE)[1]
    # The journal has no room; or it still has, and the checkpoints have none, again and again.
    assert run.returncode in (5, 1), said
    assert "Traceback" not in said
    if run.returncode == 5:
        assert "cannot write the journal" in said.splitlines()[-1]
    assert gone(lambda: marked("COACH_HOME", str(home.path)), 10) == []
    assert list(temporary.iterdir()) == []
    left = job_of(home)
    assert left and len(left.epochs) >= 2 and left.reason.value != "TargetReached"

    filler.unlink()
    done = subprocess.run(
        [*coach, "resume", "long"], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    job = job_of(home)
    assert job
    done_before = [epoch.report for epoch in left.epochs]
    assert [epoch.report for epoch in job.epochs][: len(done_before)] == done_before
    # Three attempts that found no room, and the one whose end could not be written.
    assert losses(job, 4, [epoch.report.loss for epoch in job.epochs]) == []

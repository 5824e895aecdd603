"""Run logs of the thesis's handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from coach_research.traces.replay import read_trace
from tests.research.traces.reading import notes, read, refusal

JOB = """{ "id": "a", "servers": [ 1 | 2 ], "workers": [ 1, 1 | 3 ],
 "startTime": "2021-05-04 23:20:37.39 +0200 CEST m=+0.01", "totalTime":8.4E+02 }
"""


def test_a_run_log_becomes_its_jobs() -> None:
    one, other = read_trace("thesis:tests/data/thesis/runs/Cifar10/multi_job_default_scheduler_83_tl.txt").works
    assert (one.name, one.kind, one.minimum) == ("ogyil0hc48", "Cifar10", (1, 2))
    assert one.work == pytest.approx(845.18, abs=0.01)
    assert other.arrival >= 0


def test_a_job_of_three_workers_takes_as_long_as_it_took_there(tmp_path: Path) -> None:
    trace = read(tmp_path, JOB, "thesis")
    (work,) = trace.works
    assert (work.minimum, work.work / 3) == ((3, 2), 840)
    assert notes(trace.assumed) == [("", 0, "one core for each function, and the last allocation from the start")]


def test_a_job_that_lacks_something_is_left_out_with_the_reason(tmp_path: Path) -> None:
    trace = read(tmp_path, JOB + JOB.replace('"a"', '"b"').replace("totalTime", "time"), "thesis")
    assert notes(trace.left_out) == [("b", 3, "its total time is not known")]


def test_a_file_without_a_job_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "no braces", "thesis") == "trace.csv: no job is in it; nothing was simulated"

"""Slurm's accounting, as `sacct -P` prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA, notes, read, refusal

HEADER = "JobID|State|Submit|ElapsedRaw|AllocTRES\n"


def test_a_job_on_several_nodes_is_a_task_on_each() -> None:
    trace = read_trace(f"sacct:{DATA / 'small.sacct'}")
    assert [(work.name, work.kind, work.arrival, work.priority) for work in trace.works] == [
        ("101", "gpu", 0, 4294), ("103", "cpu", 120, 50),
    ]  # fmt: skip
    one, four = trace.works
    assert (one.minimum, one.worker.tolist(), one.work) == ((1, 0), [32, 128, 4], 3600)
    assert (four.minimum, four.worker.tolist(), four.work) == ((4, 0), [32, 125, 0], 4 * 7200)
    assert trace.waited == 300
    assert notes(trace.left_out) == [
        ("101.batch", 3, "a step of a job that has a line of its own"),
        ("102", 4, "its run time is 0"),
        ("104", 6, "it has not ended"),
    ]


@pytest.mark.parametrize(
    ("tres", "worker"),
    [
        ("cpu=2,mem=512M", [2, 0.5, 0]),
        ("cpu=2,mem=1T,gres/gpu:a100=2,gres/gpu:h100=1", [2, 1024, 3]),
        ("billing=9,cpu=1,energy=12,mem=2048", [1, 2, 0]),
    ],
)
def test_amounts_are_those_of_slurm(tres: str, worker: list[float], tmp_path: Path) -> None:
    trace = read(tmp_path, f"{HEADER}1|COMPLETED|2026-11-02T08:00:00|60|{tres}\n", "sacct")
    assert trace.works[0].worker.tolist() == worker


@pytest.mark.parametrize(("elapsed", "seconds"), [("00:01:30", 90), ("1-02:03:04", 93784), ("02:03.500", 123)])
def test_elapsed_time_may_be_in_words(elapsed: str, seconds: float, tmp_path: Path) -> None:
    line = f"1|COMPLETED|2026-11-02T08:00:00|{elapsed}|cpu=1"
    trace = read(tmp_path, f"{HEADER.replace('ElapsedRaw', 'Elapsed')}{line}\n", "sacct")
    assert trace.works[0].work == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("JobID|State\n", "trace.csv:1: the header has no column Submit"),
        ("JobID,State,Submit\n", 'fields are separated by ","; a CSV with "|" is expected'),
        (
            f"{HEADER}1|COMPLETED|yesterday|60|cpu=1\n",
            'trace.csv:2: Submit: "yesterday" is given; use a time',
        ),
        (f"{HEADER}1|COMPLETED|2026-11-02T08:00:00|60|cpu=many\n", 'column AllocTRES: "cpu=many" is given'),
        (f"{HEADER}1|COMPLETED\n", "trace.csv:2: the row has 2 fields, the header has 5"),
        (f"{HEADER}1|PENDING|2026-11-02T08:00:00|0|\n", "no job can be simulated"),
    ],
)
def test_a_mistake_says_where_it_is_and_what_would_be_right(text: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, text, "sacct")


def test_without_the_prefix_the_error_names_it(tmp_path: Path) -> None:
    assert "did you mean sacct:" in refusal(tmp_path, HEADER)


REQUEUED = """JobID|State|Submit|Start|ElapsedRaw|AllocTRES
5|REQUEUED|2026-10-01T10:00:00|2026-10-01T10:05:00|600|cpu=4,node=1
5|NODE_FAIL|2026-10-01T10:15:00|2026-10-01T10:20:00|900|cpu=4,node=1
5|NODE_FAIL|2026-10-01T10:15:00|2026-10-01T10:20:00|900|cpu=4,node=1
5|COMPLETED|2026-10-01T10:35:00|2026-10-01T10:40:00|3600|cpu=4,node=1
"""


def test_each_attempt_of_a_requeued_job_is_simulated_once(tmp_path: Path) -> None:
    trace = read(tmp_path, REQUEUED, "sacct")
    assert [(work.name, work.arrival, work.work) for work in trace.works] == [
        ("5", 0, 600), ("5 (attempt 2)", 900, 900), ("5 (attempt 4)", 2100, 3600),
    ]  # fmt: skip
    assert trace.waited == 300
    assert notes(trace.left_out) == [("5", 4, "a job before it has its number")]


def test_no_job_waited_less_than_no_time_when_the_clock_was_put_back(tmp_path: Path) -> None:
    head, line = "JobID|State|Submit|Start|ElapsedRaw|AllocTRES\n", "{}|COMPLETED|2026-10-25T02:50:00|{}|60|cpu=1\n"
    assert read(tmp_path, head + line.format(1, "2026-10-25T02:10:00"), "sacct").waited == 20 * 60
    either = head + line.format(1, "2026-10-25T02:10:00") + line.format(2, "1970-01-01T00:00:00")
    assert read(tmp_path, either, "sacct").waited == 20 * 60

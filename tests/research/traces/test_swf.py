"""Workloads of the Parallel Workloads Archive: each line is simulated, or left out with the reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA, notes, read, refusal

LINE = "1 10 5 100 4 -1 1024 4 200 -1 1 3 1 1 1 1 -1 -1"


def test_a_workload_of_the_parallel_workloads_archive_becomes_tasks() -> None:
    works = read_trace(f"swf:{DATA / 'small.swf'}").works
    # Job 3 never ran, line 9 is a part of a job that has a line of its own.
    assert [(work.name, work.kind, work.arrival) for work in works] == [
        ("1", "completed", 0), ("2", "failed", 15), ("5", "completed", 45),
    ]  # fmt: skip
    first, second, third = works
    assert (first.minimum, first.maximum, first.work) == ((4, 0), (4, 0), 4 * 100)
    # KiB of each processor; where it is not known what was used, what was requested.
    assert [work.worker.tolist() for work in works] == [[1, 0.5, 0], [1, 2, 0], [1, 0, 0]]
    assert second.minimum == (8, 0)
    assert third.work == 90


def test_lines_that_cannot_be_simulated_are_left_out_with_the_reason() -> None:
    trace = read_trace(str(DATA / "left-out-lines.swf"))
    assert (trace.read, [work.name for work in trace.works]) == (7, ["1", "5", "6", "7"])
    assert notes(trace.left_out) == [
        ("2", 6, "its run time is not known"),
        ("3", 7, "its run time is 0"),
        ("4", 8, "its run time is not known"),
    ]
    unknown = "no memory, as none is known"
    assert notes(trace.assumed) == [("1", 5, unknown), ("5", 9, unknown), ("7", 12, unknown)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 10 5 100 4 -1 1024 4 200 -1 1 3 1 1 1 1 -1 -1", "a job before it has its number"),
        ("1 -130 5 100 4 -1 1024 4 200 -1 1 3 1 1 1 1 -1 -1", 
         "a job before it has its number and its submit time is negative"),
        ("2 -1 5 100 4 -1 1024 4 200 -1 1 3 1 1 1 1 -1 -1", "its submit time is not known"),
        ("2 10 5 -100 4 -1 1024 4 200 -1 1 3 1 1 1 1 -1 -1", "its run time is negative"),
        ("2 10 5 100 -1 -1 1024 -1 200 -1 1 3 1 1 1 1 -1 -1", "its number of processors is not known"),
        ("1 10 5 100 4 -1 1024 4 200 -1 3 3 1 1 1 1 -1 -1", "part of a job that has a line of its own"),
        ("2 10 5 100 4 -1 1024 4 200 -1 7 3 1 1 1 1 -1 -1", "no such status"),
    ],
)  # fmt: skip
def test_the_reason_is_that_of_the_line(line: str, reason: str, tmp_path: Path) -> None:
    trace = read(tmp_path, f"{LINE}\n{line}\n", name="t.swf")
    assert (trace.read, len(trace.works)) == (2, 1)
    assert notes(trace.left_out) == [(line[:1], 2, reason)]


def test_what_stands_for_unknown_processors_and_memory_is_said(tmp_path: Path) -> None:
    trace = read(tmp_path, "2 10 5 100 -1 -1 -1 4 200 2048 1 3 1 1 1 1 -1 -1\n", name="t.swf")
    assert [what for _, _, what in notes(trace.assumed)] == [
        "the processors that it asked for, as those that it had are not known", "the memory that it asked for",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "t.swf: no job is in it"),
        ("; only comments", "t.swf: no job is in it"),
        ("1 2 3", "t.swf:1: the line has 3 columns; a job has 18"),
        (f"; one\n{LINE.replace('100', 'soon')}", 't.swf:2:8: run time: "soon" is given; use a number'),
        (LINE.replace("100", "nan"), 't.swf:1:8: run time: "nan" is given'),
        (LINE.replace("100", "inf"), 't.swf:1:8: run time: "inf" is given'),
        (LINE.replace("10 5", "1e999 5"), 't.swf:1:3: submit time: "1e999" is given'),
        (LINE.replace("10 5", "1e300 5"), "submit time: \"1e300\" is given; use a number of 10000000000 at most"),
        (LINE.replace(" 4 ", " 1e300 "), "processors: \"1e300\" is given; use a number of 10000000 at most"),
        (LINE.replace(" 1 3 ", " nan 3 "), 'status: "nan" is given'),
        ("1 " * 100_000, "t.swf:1: the line is longer than 10000 characters"),
        (bytes(range(1, 256)) * 50, "a job has 18"),
        (bytes(range(256)) * 50, "this is no UTF-8 text (byte 0x00)"),
        (gzip.compress(LINE.encode())[:30], "the compressed file is broken behind this line"),
        (LINE.replace(" 100 ", " 0 "), "no job can be simulated: 1 job, its run time is 0: 1 (line 1)"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_job_is_named_with_its_column(content: str | bytes, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, content, "swf", "t.swf")

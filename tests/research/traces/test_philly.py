"""Months of Philly's jobs, with the gaps that they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA, notes, read, refusal


def job(name: str = "j", submitted: object = "2017-10-09 07:00:00", **attempt: Any) -> dict[str, Any]:
    given = {
        "start_time": "2017-10-09 07:10:00",
        "end_time": "2017-10-09 07:20:00",
        "detail": [{"gpus": ["gpu0"]}],
    } | attempt
    return {"jobid": name, "status": "Pass", "submitted_time": submitted, "attempts": [given]}


def test_a_job_is_tasks_on_its_machines() -> None:
    first, second = read_trace(f"philly:{DATA / 'philly.json'}").works
    assert (first.minimum, first.worker.tolist(), first.work) == ((2, 0), [8, 0, 2], 2 * 600)
    assert (second.arrival, second.work, second.kind) == (120, 60, "Failed")


def test_a_month_with_gaps_says_what_was_left_out_and_assumed() -> None:
    trace = read_trace(f"philly:{DATA / 'philly-month-with-gaps.json'}")
    no_end = "none of its attempts has a start, and an end after it"
    assert trace.read == 5
    assert notes(trace.left_out) == [
        ("application_2", 3, "it has no attempt"),
        ("application_3", 4, no_end),
        ("application_4", 5, f"{no_end} and its time of submission is not known"),
    ]
    assert [(note.job, note.why) for note in trace.assumed] == [
        ("application_5", "an end within the hour that daylight saving repeats is the later one"),
        ("", "4 cores and no memory for each device, as the trace says nothing of them"),
    ]
    # 1:35:04 to the second 1:10:00 of that night, and 2:35:04 to 3:10:00.
    assert [(work.name, work.work) for work in trace.works] == [
        ("application_1", 410),
        ("application_5", 2 * (34 * 60 + 56)),
    ]
    # From 9 October, 7:01:58, to 5 November, the first 1:30:00.
    assert trace.works[1].arrival == 26 * 86400 + 18 * 3600 + 28 * 60 + 2


def test_no_device_of_uneven_machines_is_lost(tmp_path: Path) -> None:
    uneven = job(detail=[{"gpus": ["a", "b"]}, {"gpus": ["a", "b", "c"]}, {"gpus": []}])
    (work,) = read(tmp_path, json.dumps([uneven]), "philly").works
    assert work.minimum.workers * work.worker[2] == 5


def test_an_attempt_without_an_end_is_not_counted_and_that_is_said(tmp_path: Path) -> None:
    two = job()
    two["attempts"] += [{"start_time": "2017-10-09 08:00:00", "end_time": None, "detail": []}]
    trace = read(tmp_path, json.dumps([two]), "philly")
    assert trace.works[0].work == 600
    assert trace.assumed[0].why == "without the attempts that have no start, or no end after it"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "t.json: the file is empty; a JSON list of jobs is expected"),
        ("[]", "t.json: no job is in it"),
        ("{}", "t.json:1:1: '{' begins the file; a JSON list of jobs is expected"),
        ("[1, 2]", "t.json:1:2: a job is expected, as an object; 1 is given"),
        ("[" * 100_000, "t.json:1:2: the JSON is nested too deeply"),
        (json.dumps([job("a"), job("b")], indent=1)[:-140], "the JSON is broken"),
        ('[\n {"jobid": "a",\n  "attempts": ]\n', "t.json:3:15: the JSON is broken (Expecting value)"),
        ('[{"jobid": "a", "attempts": []}\n', 't.json:2:1: the JSON is broken: "," or "]" is expected'),
        ('[{"attempts": [1]}]', "t.json:1: the job has no jobid"),
        ('[{"jobid": "a", "attempts": [1]}]', "t.json:1: attempts of job a: a list of objects is expected"),
        ('[{"jobid": "a", "attempts": ' + "9" * 5000 + "}]", "or has a number too long"),
        (json.dumps([job(start_time="soon")]), 't.json:1: start_time: "soon" is given; use a time such as'),
        (json.dumps([job(end_time=[1])]), 't.json:1: end_time: "[1]" is given'),
        (json.dumps([job(detail=[1])]), 't.json:1: detail of job j: a list of machines is expected'),
        (json.dumps([job(detail=[])]), "no job can be simulated: 1 job, none of its attempts names a device: j"),
        (json.dumps([job(submitted="None")]), "its time of submission is not known: j (line 1)"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_its_place(content: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, content, "philly", "t.json")


def test_the_second_job_of_a_name_is_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, "[" + json.dumps(job("a")) + ",\n" + json.dumps(job("a")) + "]", "philly")
    assert notes(trace.left_out) == [("a", 2, "a job before it has its number")]

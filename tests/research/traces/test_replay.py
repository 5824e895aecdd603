"""A trace by its name, and its jobs on nodes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from coach.core.cluster import Node, Resources
from coach.core.errors import UserError
from coach_research.trace_simulation import replay
from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA

FOREVER = (math.inf, math.inf)


def nodes(count: int, cpu: float) -> tuple[Node, ...]:
    return tuple(Node(f"node-{number}", Resources(cpu, 4 * cpu)) for number in range(count))


@pytest.mark.parametrize("policy", ["fifo", "srtf", "drf", "fitgpp"])
def test_two_jobs_of_four_tasks_of_1000_s_take_2000_s_on_four_cores(policy: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("job,arrival,work,cpu,min_workers,max_workers\na,0,1000,1,4,4\nb,0,1000,1,4,4\n")
    found = replay(str(file), nodes(1, 4), policy, 1, FOREVER)
    assert sorted(found.completion) == pytest.approx([1000, 2000])


def test_an_elastic_job_takes_its_work_with_its_fewest_workers_and_less_with_more(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("job,arrival,work,cpu,min_workers,max_workers\na,0,1000,1,2,4\n")
    assert replay(str(file), nodes(1, 2), "fifo", 1, FOREVER).completion == pytest.approx([1000])
    assert replay(str(file), nodes(1, 4), "fifo", 1, FOREVER).completion == pytest.approx([500])


@pytest.mark.parametrize(
    ("trace", "jobs"),
    [
        ("small.swf", 3),
        ("swf:small.swf", 3),
        ("philly:philly.json", 2),
        ("helios:helios.csv", 2),
        ("own.csv", 3),
    ],
)
def test_a_published_job_takes_as_long_as_it_took_there(trace: str, jobs: int) -> None:
    kind, _, name = trace.rpartition(":")
    path = f"{kind}:{DATA / name}" if kind else str(DATA / name)
    room = tuple(Node(f"n-{n}", Resources(100, 1000, 16)) for n in range(4))
    found = replay(path, room, "fifo", 1, FOREVER)
    works = read_trace(path).works
    assert len(works) == jobs
    took = {work.name: work.work / work.minimum.workers for work in works if work.speed is None}
    for number, name in found.names.items():
        assert name not in took or found.completion[number] == pytest.approx(took[name])


def test_a_job_that_never_fits_is_named_and_the_others_run(tmp_path: Path) -> None:
    found = replay(str(DATA / "left-out-lines.swf"), nodes(8, 64), "fifo", 1, FOREVER)
    (number,) = found.never_fits
    assert found.names[number] == "5"
    assert found.never_fits[number] == (
        "needs 9999 workers x 1 cpu, best partial fit 512, and the largest node has 64 cpu 256 GiB"
    )
    assert found.ends == {"finished": 3, "NeverFits": 1}


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("no.csv", "--trace no.csv: there is no file no.csv"),
        ("swf:", "there is no file (no name)"),
        (
            "slurm:no.csv",
            "there is no kind 'slurm'; use philly:, helios:, pai:, swf:, sacct:, kueue:, kubernetes:, thesis: or none",
        ),
        ("filly:no.json", "there is no kind 'filly'; did you mean philly:no.json?"),
        (str(DATA / "philly.json"), "did you mean philly:"),
    ],
)
def test_a_name_that_is_no_trace_is_answered_with_what_would_be(trace: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        read_trace(trace)
    assert words in str(refused.value)


def test_a_file_with_a_colon_in_its_name_is_read(tmp_path: Path) -> None:
    file = tmp_path / "9:00.swf"
    file.write_bytes((DATA / "small.swf").read_bytes())
    assert len(read_trace(str(file)).works) == len(read_trace(f"swf:{file}").works) == 3

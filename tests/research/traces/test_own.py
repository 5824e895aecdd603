"""Coach's own CSV of jobs: every row is a job, or the file is refused at the cell that is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from coach.core.cluster import Node, Resources
from coach_research.trace_simulation import replay
from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA, notes, read, refusal

HEADER = "job,arrival,work,cpu,min_workers,max_workers,grace\n"


def test_our_own_trace_is_read_with_its_defaults() -> None:
    trace = read_trace(str(DATA / "own.csv"))
    early, gang, late = trace.works
    assert [work.arrival for work in trace.works] == [0, 10, 30]
    assert (early.name, early.kind, early.work, early.worker.tolist()) == (
        "early",
        "trial-and-error",
        30,
        [1, 1, 0],
    )
    assert (gang.minimum, gang.maximum, gang.server.tolist()) == ((1, 1), (2, 2), [0.5, 0, 0])
    assert gang.speed is not None
    assert gang.speed(((0, 1, 1),)) == pytest.approx(0.1)
    assert late.maximum == (1, 0)
    assert (trace.read, trace.left_out, trace.assumed) == (3, (), ())


def test_work_is_the_seconds_of_a_task_however_many_run_side_by_side(tmp_path: Path) -> None:
    four, elastic = read(tmp_path, HEADER + "a,0,1000,1,4,4,0\nb,0,1000,1,2,4,0\n").works
    # The engine counts the seconds of one worker.
    assert four.work / four.minimum.workers == 1000
    assert elastic.work / elastic.minimum.workers == 1000


def test_servers_that_a_job_only_may_have_have_their_requests(tmp_path: Path) -> None:
    header = "job,arrival,work,cpu,min_servers,max_servers,server_cpu,model\n"
    (work,) = read(tmp_path, header + "a,0,5,1,0,2,0.5,resnet-50\n").works
    assert (work.minimum.servers, work.maximum.servers, work.server.tolist()) == (0, 2, [0.5, 0, 0])


def test_seconds_of_an_epoch_without_a_model_are_said_to_be_unused(tmp_path: Path) -> None:
    trace = read(tmp_path, "job,arrival,work,cpu,model,epoch_seconds\na,0,5,1,,9\nb,0,5,1,resnet-50,9\n")
    assert notes(trace.assumed) == [("a", 2, "epoch_seconds is not used, as it has no model")]


def test_jobs_that_arrive_at_once_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    trace = read(tmp_path, "job,arrival,work,cpu\nlate,9,5,1\nb,0,5,1\na,0,5,1\n")
    assert [work.name for work in trace.works] == ["b", "a", "late"]


def test_a_job_s_restarts_checkpoints_partition_and_kinds_of_nodes_are_columns(tmp_path: Path) -> None:
    header = "job,arrival,work,cpu,min_workers,partition,restart,checkpoint,speed_by_kind\n"
    (work, plain) = read(tmp_path, header + "a,0,100,1,2,gpu,7,30,A100=2 T4=0.5\nb,0,100,1,1,,,,\n").works
    assert (work.partition, work.start_seconds, work.rescale_seconds, work.migration_seconds) == ("gpu", 7, 7, 7)
    assert work.checkpoint == 60 and work.kinds == {"A100": 2.0, "T4": 0.5}  # 30 s of two workers
    assert (plain.partition, plain.start_seconds, plain.checkpoint, plain.kinds) == ("", 0, 0, {})


def test_a_job_of_a_csv_loses_with_its_node_what_it_did_since_its_checkpoint(tmp_path: Path) -> None:
    lost = {}
    for checkpoint in (0, 10, 1000):
        rows = f"job,arrival,work,cpu,min_workers,checkpoint\na,0,5000,1,2,{checkpoint}\n"
        (tmp_path / f"{checkpoint}.csv").write_text(rows)
        nodes = (Node("n", Resources(2.0, 8.0)),)
        found = replay(str(tmp_path / f"{checkpoint}.csv"), nodes, "fifo", lost=(1500.0, math.inf))
        lost[checkpoint] = found.columns["executed"][0] - 5000.0
    assert lost[0] == pytest.approx(0.0, abs=1e-6)
    assert 0.0 < lost[10] < lost[1000]


def test_columns_that_are_not_read_and_cores_that_are_not_given_are_said(tmp_path: Path) -> None:
    trace = read(tmp_path, "job,arrival,work,cpus\na,0,5,2\n")
    assert notes(trace.assumed) == [
        ("", 0, "column cpus is not read (did you mean cpu?)"),
        ("", 0, "1 core for each worker, as there is no column cpu"),
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,nan,1,1,1,1,0", ':2: column arrival: "nan" is given; use seconds, 0 or more; nothing was simulated'),
        ("a,-5,1,1,1,1,0", ':2: column arrival: "-5" is given; use seconds, 0 or more'),
        ("a,,1,1,1,1,0", ':2: column arrival: "" is given; use seconds'),
        ("a,0,inf,1,1,1,0", ':2: column work: "inf" is given; use seconds above 0'),
        ("a,0,0,1,1,1,0", ':2: column work: "0" is given; use seconds above 0'),
        ("a,0,soon,1,1,1,0", ':2: column work: "soon" is given; use seconds above 0'),
        ("a,0,1e300,1,1,1,0", ':2: column work: "1e300" is given'),
        ("b,0,1,1,1,1,0\na,0,1,-1,1,1,0", ':3: column cpu: "-1" is given; use a number, 0 or more'),
        ("a,0,1,1,inf,1,0", ':2: column min_workers: "inf" is given; use a whole number from 1 to 10000000'),
        ("a,0,1,1,-4,-2,0", ':2: column min_workers: "-4" is given'),
        ("a,0,1,1,2.5,4,0", ':2: column min_workers: "2.5" is given'),
        ("a,0,1,1,4,2,0", ':2: column max_workers: "2" is given; use min_workers, which is 4, or more'),
        ("a,0,1,1,1,1,-1", ':2: column grace: "-1" is given'),
        ("a,0,1,1,1,1,0\n\na,5,1,1,1,1,0", ':4: column job: "a" is given; line 2 has a job of that name already'),
        (",0,1,1,1,1,0", ':2: column job: "" is given; use a name'),
        ("a,0,1,1,1", ":2: the row has 5 fields, the header has 7"),
        ("a,0,1,1,1,1,0,9", ":2: the row has 8 fields, the header has 7"),
        ("\x1b[31m" + "a" * 200 + ",x,1,1,1,1,0", ':2: column arrival: "x" is given'),
        ("a,\x1b[31m,1,1,1,1,0", ':2: column arrival: "?[31m" is given'),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_named_with_its_line_and_its_column(row: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, HEADER + row + "\n")


def test_a_model_without_speeds_is_named_with_its_line(tmp_path: Path) -> None:
    words = refusal(tmp_path, "job,arrival,work,model\na,0,5,vgg\n")
    assert words.startswith("trace.csv:2: column model: \"vgg\" is given; no speeds of 'vgg' are known; name one of")


@pytest.mark.parametrize("cell", ["A100", "A100=0", "=2", "A100=-1", "A100=nan"])
def test_a_wrong_speed_by_kind_is_refused(tmp_path: Path, cell: str) -> None:
    words = f'column speed_by_kind: "{cell}" is given; use KIND=FACTOR'
    assert words in refusal(tmp_path, f"job,arrival,work,cpu,speed_by_kind\na,0,5,1,{cell}\n")

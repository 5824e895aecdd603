"""The tables of Helios and PAI become tasks, or each row left out has its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA, notes, read, refusal

HELIOS = "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,duration\n"
PAI = "job_id,user,num_inst,num_cpu,num_gpu,submit_time,duration\n"


def test_requests_of_helios_are_of_all_nodes_together_and_those_of_pai_of_each_instance() -> None:
    first, _ = read_trace(f"helios:{DATA / 'helios.csv'}").works
    assert (first.minimum, first.worker.tolist(), first.work) == ((2, 0), [32, 0, 8], 2 * 600)
    first, second = read_trace(f"pai:{DATA / 'pai.csv'}").works
    assert (first.minimum, first.worker.tolist(), first.work) == ((2, 0), [6, 0, 0.5], 2 * 300)
    assert second.arrival == 60


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2,u,0,4,1,FAILED,2020-04-01 00:01:00,0", "its duration is 0"),
        ("2,u,0,4,1,FAILED,2020-04-01 00:01:00,", "its duration is not known"),
        ("2,u,0,4,1,FAILED,2020-04-01 00:01:00,-7", "its duration is negative"),
        ("2,u,0,4,1,FAILED,None,20", "its submit time is not known"),
        ("1,u,0,4,1,FAILED,2020-04-01 00:01:00,20", "a job before it has its number"),
    ],
)
def test_a_row_that_cannot_be_simulated_is_left_out_with_the_reason(row: str, reason: str, tmp_path: Path) -> None:
    trace = read(tmp_path, HELIOS + "1,u,0,4,1,COMPLETED,2020-04-01 00:00:00,60\n" + row + "\n", "helios")
    assert [work.name for work in trace.works] == ["1"]
    assert notes(trace.left_out) == [(row[0], 3, reason)]


def test_a_job_whose_instances_are_not_known_is_one_task_and_that_is_said(tmp_path: Path) -> None:
    trace = read(tmp_path, PAI + "5,a,,6,0.5,100,300\n", "pai")
    assert trace.works[0].minimum == (1, 0)
    assert notes(trace.assumed) == [("5", 2, "one task, as their number is not known")]


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("helios", HELIOS + "1,u,0,4,inf,X,2020-04-01 00:00:00,60", ':2: column node_num: "inf" is given'),
        ("helios", HELIOS + "1,u,0,-4,1,X,2020-04-01 00:00:00,60", ':2: column cpu_num: "-4" is given'),
        ("helios", HELIOS + "1,u,0,4,1,X,tomorrow,60", ':2: submit_time: "tomorrow" is given; use a time such as'),
        ("helios", "node_num,duration\ninf,1", ":1: the header has no column cpu_num, gpu_num, job_id, state"),
        ("pai", PAI + "5,a,1e400,6,0.5,100,300", ':2: column num_inst: "1e400" is given'),
        ("pai", PAI + "5,a,1,6,0.5,nan,300", ':2: column submit_time: "nan" is given; use a finite number'),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_named_with_its_line_and_its_column(
    kind: str, content: str, words: str, tmp_path: Path
) -> None:
    assert words in refusal(tmp_path, content, kind)

"""Tables of a simulated run: their sums are those of queueing theory, and of the run itself."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path

import numpy as np
import pytest

from coach.core.cluster import Allocation
from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.jobfiles.load import load_jobs
from coach.plugins import policy
from coach.report.simulation.tables import check_ending, job_rows, timeline_rows, write_rows
from coach.simulation.metrics import Result
from coach.studies.simulation_inputs import of_specs
from coach.studies.study import Question, answer
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.workload import Work


def run(name: str = "backfill", jobs: int = 300) -> Result:
    """Gangs on four nodes that are nearly always full, and one job that never fits."""
    dice = np.random.default_rng(3)
    works, at = [Work(0.0, 5.0, np.array([1e6, 0.0, 0.0]), name="huge")], 0.0
    for number in range(jobs):
        at += float(dice.exponential(4.0))
        count = int(dice.choice([1, 2, 4]))
        works.append(
            Work(
                at, count * float(dice.exponential(60.0)), np.array([2.0, 4.0, float(dice.integers(0, 3))]),
                name=f"job-{number}", kind="gang" if count > 1 else "task",
                minimum=Allocation(count, 0), maximum=Allocation(count, 0),
            )
        )  # fmt: skip
    return Result.of(Engine(Cluster.uniform(4, 16, 64, 8), works, policy(name)).run(), name, 1)


def test_what_is_over_time_is_what_is_by_jobs() -> None:
    result = run()
    jobs = [row for row in job_rows(result) if row["end"] is not None]
    widths = np.diff(np.append(result.times, result.ended))
    over_time = {
        name: float(np.dot([row[name] for row in timeline_rows(result)], widths))
        for name in ("jobs", "waiting", "cpu_used", "gpu_used", "cpu_asked")
    }
    assert len(jobs) == 300
    # Little's law, and the conservation of work.
    assert over_time["jobs"] == pytest.approx(sum(row["end"] - row["arrival"] for row in jobs))
    assert over_time["waiting"] == pytest.approx(sum(row["start"] - row["arrival"] for row in jobs))
    assert over_time["cpu_used"] == pytest.approx(sum(row["cpu_seconds"] for row in jobs))
    assert over_time["gpu_used"] == pytest.approx(sum(row["gpu_seconds"] for row in jobs))
    asked = sum(2.0 * row["workers"] * (row["end"] - row["arrival"]) for row in jobs)
    assert over_time["cpu_asked"] == pytest.approx(asked)
    assert over_time["waiting"] > 0 and max(row["waiting"] for row in timeline_rows(result)) > 1


def test_gpus_are_counted_by_kind(tmp_path: Path) -> None:
    """Two kinds of GPUs: what jobs hold of each, at both fidelities, adds up to what they hold."""
    cluster = Cluster(np.array([[8.0, 64.0, 4.0], [8.0, 64.0, 2.0], [8.0, 64.0, 0.0]]), kinds=("A100", "T4", "plain"))
    works = [Work(0.0, 100.0, np.array([1.0, 1.0, 4.0])), Work(0.0, 50.0, np.array([1.0, 1.0, 2.0]))]
    result = Result.of(Engine(cluster, works, policy("fifo")).run(), "fifo", 1)
    rows = list(timeline_rows(result))
    assert [rows[at]["gpu_used_by_kind"] for at in (0, 49, 50, 99)] == [{"A100": 4, "T4": 2}] * 2 + [
        {"A100": 4, "T4": 0}
    ] * 2
    with write_rows(tmp_path / "over-time.csv", rows).open() as file:
        last = list(csv.DictReader(file))[99]
    assert (last["gpu_used"], last["gpu_used_A100"], last["gpu_used_T4"]) == ("4.0", "4.0", "0.0")

    document = load_jobs([Path("jobs/a.yaml")], check_files=False)[0].spec.to_json()
    document["spec"]["resources"]["worker"]["gpu"] = 1
    job = TrainingJob.from_json(document)
    assumed = of_specs([job], "resnet-50", 10.0, 5.0, assume=True)
    question = Question(tuple(assumed.jobs), tuple(assumed.dynamics), assumed.arrivals, cluster.nodes())
    rows = list(timeline_rows(answer(question, "drf", 1)))
    assert sum(row["gpu_used"] for row in rows) > 0
    for row in rows:
        assert sum(row["gpu_used_by_kind"].values()) == pytest.approx(row["gpu_used"])


def test_a_job_s_row_has_its_times_and_what_it_had() -> None:
    rows = {row["job"]: row for row in job_rows(run("fifo", 40))}
    huge = rows.pop("huge")
    assert huge["end"] is None and "the largest node has" in huge["why"] and not huge["reached"]
    for row in rows.values():
        assert row["arrival"] <= row["start"] < row["end"] and row["reached"]
        assert row["wait"] == pytest.approx(row["start"] - row["arrival"])
        assert row["slowdown"] == pytest.approx(1 + row["wait"] / row["executed"])
        assert (row["kind"] == "task") == (row["workers"] == 1)


def test_a_table_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    rows = list(job_rows(run("fifo", 20)))
    with write_rows(tmp_path / "jobs.csv", rows).open() as file:
        read = list(csv.DictReader(file))
    assert [row["job"] for row in read] == [row["job"] for row in rows]
    assert [float(row["end"] or "nan") for row in read] == pytest.approx(
        [math.nan if row["end"] is None else row["end"] for row in rows], nan_ok=True
    )


def test_parquet_is_written_where_pyarrow_is(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = list(timeline_rows(run("fifo", 20)))
    assert parquet.read_table(write_rows(tmp_path / "over-time.parquet", rows)).to_pylist() == rows


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"--jobs a.txt: use a name that ends in .csv or .parquet"):
        check_ending(Path("a.txt"), "--jobs")
    with pytest.raises(UserError, match=r"there is no folder .*none; nothing was simulated"):
        check_ending(tmp_path / "none" / "a.csv", "--jobs")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"--jobs a.parquet: Parquet needs pyarrow: pip install pyarrow"):
        check_ending(Path("a.parquet"), "--jobs")

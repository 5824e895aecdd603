"""Shockwave's trace: what is read of it, what is fitted, and one run compared with the physical one."""

from __future__ import annotations

import pytest

from coach_research import scenario
from coach_research.experiments.clusters import shockwave as shockwave_physical

PARAMETERS = scenario.load("shockwave-physical").parameters


def test_the_jobs_are_those_of_the_trace() -> None:
    jobs = shockwave_physical.trace()
    assert (len(jobs), sum(job.gpus for job in jobs), max(job.arrival for job in jobs)) == (120, 164, 5011)
    # The authors' own simulator uses 627,000 GPU-seconds; it ends an epoch early where a batch grows.
    assert sum(job.seconds() * job.gpus for job in jobs) == pytest.approx(632_000, rel=0.02)
    # Job 0 is a language model that grows from 10 to 20 and 40; job 1 grows once, when Accordion says so.
    assert [size for _, size in jobs[0].batches] == [10, 20, 40]
    assert [size for _, size in jobs[1].batches] == [32, 256]


def test_what_is_fitted_for_a_run_does_not_know_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shockwave_physical.habits("allox"), shockwave_physical.habits("shockwave")
    rows = shockwave_physical._rows

    def other(name: str) -> list[dict[str, str]]:
        return [{**row, "round_s": "500"} if row.get("policy") == "allox" else row for row in rows(name)]

    monkeypatch.setattr(shockwave_physical, "_rows", other)
    assert shockwave_physical.habits("allox") == before[0]
    assert shockwave_physical.habits("shockwave") != before[1]


@pytest.mark.standard
def test_max_min_fairness_ends_as_on_the_physical_cluster() -> None:
    found = shockwave_physical.replicate({**PARAMETERS, "policies": ["max_min_fairness"]}, 1)
    assert found["max_min_fairness: makespan, s"] == pytest.approx(34619, rel=0.03)
    assert found["max_min_fairness: mean completion, s"] == pytest.approx(12113, rel=0.03)
    assert found["max_min_fairness: worst finish-time fairness"] == pytest.approx(3.46, rel=0.05)


def test_shockwave_expects_the_batch_sizes_that_it_has_seen() -> None:
    """Job 1 has 58 epochs of 32 or 256 samples; it starts with 32."""
    of, policy = shockwave_physical.trace()[1], shockwave_physical.LateShockwave()
    slow, fast = (round(of.epoch_seconds(size)) for size in (32, 256))

    class Seen:
        name = "1"

        def __init__(self, done: float) -> None:
            self.done = lambda: done

    first, later = policy.outlook(Seen(0)), policy.outlook(Seen(15.5))  # type: ignore[arg-type]
    assert first.left == pytest.approx(of.epochs * (slow + fast) / 2, rel=0.05)
    assert first.epoch == slow
    assert (later.done, later.past) == (15, 15 * slow)
    assert (of.epochs - 15) * (slow + fast) / 2 > later.left > (of.epochs - 15) * fast


@pytest.mark.full
def test_shockwave_ends_as_on_the_physical_cluster() -> None:
    found = shockwave_physical.replicate({**PARAMETERS, "policies": ["shockwave"]}, 1)
    assert found["shockwave: makespan, s"] == pytest.approx(25265, rel=0.05)
    assert found["shockwave: mean completion, s"] == pytest.approx(10509, rel=0.05)

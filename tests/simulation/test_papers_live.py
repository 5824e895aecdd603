"""The papers' policies make the same kind of decision in recorded live runs and in virtual time."""

from __future__ import annotations

import pytest

from benchmarks.papers_live import records_of, seen, simulated

pytestmark = pytest.mark.standard

#: (workload, policy, its decision, the baseline)
DECISIONS = [
    ("specon", "specon", "moves", "round-robin"),
    ("fitgpp", "fitgpp", "preemptions", "fifo"),
    ("kod2", "kod2", "resizes", None),
]


@pytest.mark.parametrize(("workload", "name", "decision", "baseline"), DECISIONS)
def test_a_live_run_has_its_policy_s_decisions(workload: str, name: str, decision: str, baseline: str | None) -> None:
    assert seen(records_of(workload, name)).counts[decision] > 0
    if baseline is not None:
        assert seen(records_of(workload, baseline)).counts[decision] == 0


@pytest.mark.parametrize(("workload", "name", "decision", "_baseline"), DECISIONS[1:])
def test_the_same_jobs_in_virtual_time_have_as_many(
    workload: str, name: str, decision: str, _baseline: str | None
) -> None:
    live = seen(records_of(workload, name)).counts[decision]
    assert simulated(workload, name).counts[decision] == live

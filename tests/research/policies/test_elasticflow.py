"""ElasticFlow: who is admitted, what is promised, and the deadlines of its own trace."""

from __future__ import annotations

from itertools import islice

import pytest

from coach import plugins
from coach.core.cluster import Allocation
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.experiments.clusters import elasticflow
from coach_research.policies.elasticflow import ElasticFlow, levels
from tests.core.policies.policy_examples import Job, cluster, server_speed


def test_a_job_that_was_admitted_keeps_its_share_when_others_come() -> None:
    policy = plugins.policy("elasticflow")
    a = Job("a", deadline=500.0)
    assert policy.allocate([a], cluster(8)).allocations["a"] == Allocation(4, 4)
    # Alone b could end in time; with what a was promised it cannot, whenever it was created.
    b = Job("b", deadline=250.0, created=-1.0)
    found = policy.allocate([Job("a", deadline=260.0), b], cluster(8)).allocations
    assert found["a"] == Allocation(4, 4)
    assert policy.memory("a") == {"admitted": True}
    assert policy.memory("b") == {"admitted": False}


def test_what_was_decided_is_known_after_a_restart() -> None:
    late = Job("a", deadline=500.0, policy_state={"admitted": False})
    found = plugins.policy("elasticflow:drop=yes").allocate([late, Job("b", created=1.0)], cluster(8))
    assert found.allocations == {"a": None, "b": Allocation(4, 4)}
    assert str(found.why("a")[0]) == "job a nothing -> waits: deadline"


def test_allocations_that_are_no_faster_are_left_out() -> None:
    assert levels(Job("a", server_speed(100.0, worker=20.0))) == [Allocation(1, 1), Allocation(2, 2)]


@pytest.mark.skipif(bool(elasticflow.missing()), reason=f"needs what is no part of Coach: {elasticflow.missing()}")
def test_admitted_jobs_of_its_own_trace_end_in_time_and_others_are_not_admitted() -> None:
    """The first 13 jobs on 16 GPUs, where not all can be met; a decision a minute apart costs a minute."""
    works = list(islice(elasticflow.works(), 13))
    admitted: dict[int, bool] = {}

    class Noted(ElasticFlow):
        def allocate(self, jobs, nodes):  # type: ignore[no-untyped-def]
            found = super().allocate(jobs, nodes)
            admitted.update({int(job.id): self.memory(job.id)["admitted"] for job in jobs})
            return found

    record = Engine(Cluster.uniform(4, 64, gpu=4), works, Noted(cadence=60.0)).run(until=10000)
    took = record.column("finished") - record.column("arrived")
    due = [at for at, work in enumerate(works) if admitted[at] and work.arrival + work.deadline + 120 < 10000]
    assert all(took[at] <= works[at].deadline + 60 + 4 * elasticflow.CHANGE for at in due)
    assert len(due) >= 2
    assert 0 < sum(admitted.values()) < len(works)

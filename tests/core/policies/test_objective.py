"""What a job file's `objective` changes in a whole life."""

from __future__ import annotations

from coach.core.jobs.reasons import State
from coach.core.money import to_amount
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd


def life(objective: str, **changes: object) -> tuple[float, float]:
    """Seconds and money of a job that more workers speed up less and less."""
    world = World.of(nodes(4, 4.0))
    slower = FaultyDynamics(speed=lambda w, s: 0.1 * w / (1 + 0.6 * (w - 1)))
    world.submit(spec(objective=objective, budget=usd(100.0), **changes), slower)
    world.run()
    job = world.job()
    assert job.state is State.SUCCEEDED, job.message
    assert job.progress.ended_at is not None
    return job.progress.ended_at - job.progress.submitted_at, to_amount(job.money.ledger.spent)


def test_a_job_that_wants_to_be_cheap_takes_longer_and_costs_less() -> None:
    soonest, dear = life("soonest")
    longer, cheap = life("cheapest")
    assert longer > 1.2 * soonest
    assert cheap < 0.9 * dear


def test_a_cheap_job_with_a_time_limit_hurries_as_much_as_it_has_to() -> None:
    soonest, _ = life("soonest")
    longest, _ = life("cheapest")
    limit = round((soonest + longest) / 2)
    took, _ = life("cheapest", timeLimit=limit)
    assert took <= limit

"""A budget that cannot reach its target: said with numbers, and refused where the job asks for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coach.core.cluster import Allocation, Node, Resources
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.enough_money import TOO_SMALL, enough
from coach.core.policies.coach import CoachPolicy
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach.simulation.outcome import Ended
from coach.simulation.reducer_simulation import Driver

NODES = tuple(Node(f"node-{n}", Resources(32.0, 128.0)) for n in range(3))
EPOCHS = 25


def run(budget: float | None, *, refuse: bool = False, known: bool = True, **changes: Any) -> Ended:
    """A job that needs 25 epochs and their streak, alone on its cluster; `known`: an earlier one took as many."""
    document = job_file("job", 2, budget=budget, policy=changes.pop("policy", None))
    if refuse:
        document["spec"]["budget"]["mustSuffice"] = True
    dynamics = assumed(TrainingJob.from_json(document), shipped()["resnet-50"], 60.0, changes.pop("epochs", EPOCHS))
    driver = Driver(NODES, CoachPolicy(), seed=3)
    earlier: dict[str, Any] = {}
    if known:
        speeds = [Allocation(w, s) for w in (1, 2) for s in (1, 2)]
        points = tuple(KnownSpeed(*at, dynamics.speed(*at)) for at in speeds)
        earlier = {"known_points": points, "known_epochs": float(EPOCHS)}
    driver.submit_at(0.0, "job", document, dynamics, **earlier)
    driver.run()
    return driver.ended["job"]


@pytest.fixture(scope="module")
def cheapest() -> float:
    """What the cheapest fixed choice costs."""
    policies = [{"name": "static", "workers": w, "servers": s} for w in (1, 2) for s in (1, 2)]
    return min(run(None, policy=policy).spent for policy in policies)


def test_a_budget_that_earlier_runs_show_to_be_too_small_is_refused_before_anything_is_spent(
    cheapest: float,
) -> None:
    refused = run(0.4 * cheapest, refuse=True)
    assert (refused.state, refused.reason) == (State.BUDGET_EXHAUSTED, Reason.BUDGET_TOO_SMALL)
    assert refused.spent == 0.0 and refused.epochs == 0
    assert "reach the target with a chance of at most 2 %: 0.047 USD are needed at least, " in refused.final.message


def test_without_being_asked_to_refuse_the_job_spends_what_it_has(cheapest: float) -> None:
    ended = run(0.4 * cheapest)
    assert ended.reason is Reason.BUDGET_SPENT and ended.spent > 0.3 * cheapest


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_budget_that_may_suffice_is_not_refused(cheapest: float, factor: float) -> None:
    assert run(factor * cheapest, refuse=True).reason is not Reason.BUDGET_TOO_SMALL


def test_a_job_s_own_start_shows_it_too_where_no_earlier_run_does(cheapest: float) -> None:
    refused = run(0.7 * cheapest, refuse=True, known=False, epochs=60)
    assert refused.reason is Reason.BUDGET_TOO_SMALL
    assert refused.epochs >= 8 and refused.spent < 0.7 * cheapest


def test_the_amounts_that_may_and_that_do_suffice_are_around_what_the_job_takes(cheapest: float) -> None:
    job = run(2 * cheapest).final
    models = replace(job.models, full_epoch_curves=(), curve=None)
    money = replace(job.money, ledger=replace(job.money.ledger, spent=0, reserved=0))
    new = replace(job, epochs=[], models=models, money=money)
    found = enough(new)
    assert found is not None and found.least < cheapest < found.suffices < 2.5 * cheapest
    assert not found.too_small
    for share, small in ((0.9, True), (1.1, False)):
        new.money.ledger.budget = round(share * found.least * 1e9)
        again = enough(new)
        assert again is not None and again.too_small is small is (again.chance < TOO_SMALL)


def test_nothing_is_said_without_a_target_a_budget_or_knowledge() -> None:
    assert enough(run(None).final) is None
    job = run(1.0, known=False).final
    new = replace(job, epochs=[], models=replace(job.models, full_epoch_curves=(), curve=None, known_epochs=None))
    assert enough(new) is None

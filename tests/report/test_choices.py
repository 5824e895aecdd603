"""What was considered and refused is reported with the reason of the decision."""

import re
from dataclasses import replace

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs.actions import SetAllocation
from coach.core.jobs.decision import DecisionStep, StepKind
from coach.core.jobs.epoch import EpochKind
from coach.report.choices import Verdict, considered, last_decision, refused_words
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.report.recorded_jobs import BUDGET, faulty_job, half_way, one_job, steady_job


def verdicts(choices) -> dict[Verdict, set[str]]:
    found: dict[Verdict, set[str]] = {}
    for one in choices:
        found.setdefault(one.verdict, set()).add(str(one.allocation))
    return found


def test_the_last_decision_on_a_whole_epoch_is_seen_as_the_job_was_then() -> None:
    world = one_job()
    decision = last_decision(world.history, "digits")
    last = [one for one in world.history if isinstance(one, SetAllocation) and one.kind is EpochKind.FULL][-1]
    assert decision is not None
    assert (decision.chosen, decision.steps) == (last.allocation, last.why)
    assert len(decision.job.epochs) == len(world.job("digits").epochs) - 1
    assert not decision.job.ended and world.job("digits").ended


def test_a_job_without_a_decision_has_none() -> None:
    assert last_decision([], "digits") is None
    assert last_decision(one_job().history[:3], "digits") is None


def test_slower_allocations_gain_nothing_and_what_was_taken_back_did_not_fit() -> None:
    decision = last_decision(half_way().history, "digits")
    assert decision is not None and decision.chosen == (3, 1)
    assert verdicts(decision.choices()) == {
        Verdict.CHOSEN: {"3x1"},
        Verdict.NO_GAIN: {"1x1", "1x2", "1x3", "2x1", "2x2", "2x3"},
        Verdict.NO_ROOM: {"3x2", "3x3"},
    }
    refusals = {str(one.allocation): f"{one.refusal}, {one.faster}" for one in decision.choices()}
    assert refusals["3x2"].startswith("no room: no cores left, ") and refusals["3x2"].endswith(" % faster")
    assert refusals["2x1"].startswith("no gain, ") and refusals["2x1"].endswith(" % slower")


def test_what_the_budget_does_not_cover_is_too_dear() -> None:
    decision = last_decision(faulty_job().history, "faulty")
    assert decision is not None
    choices = decision.choices()
    assert set(verdicts(choices)) == {Verdict.CHOSEN, Verdict.TOO_DEAR}
    refusals = {str(one.allocation): f"{one.refusal}, {one.faster}" for one in choices}
    assert refusals["3x3"].startswith("too dear: the money left does not cover it, ")
    assert refusals["2x1"].startswith("too dear: ")


def test_what_is_dearer_than_an_epoch_may_be_is_too_dear_while_the_money_covers_it() -> None:
    history = faulty_job().history
    decisions = [last_decision(history[:end], "faulty") for end in range(len(history), 0, -5)]
    refusals = [one.refusal for decision in decisions if decision for one in decision.choices()]
    assert any(refusal.startswith("too dear: ") and "an epoch may cost" in refusal for refusal in refusals)


def test_a_job_whose_file_leaves_no_choice_has_nothing_refused() -> None:
    decision = last_decision(steady_job().history, "steady")
    assert decision is not None
    assert verdicts(decision.choices()) == {Verdict.CHOSEN: {"2x1"}}
    assert refused_words(decision.choices()) == []


def test_refusals_have_a_line_for_each_reason() -> None:
    decision = last_decision(half_way().history, "digits")
    assert decision is not None
    slower, full = refused_words(decision.choices())
    assert re.fullmatch(r"no gain: 1x1 \([\d.]+ % slower\), 1x2 \(.*\), .*, 2x3 \([\d.]+ % slower\)", slower)
    assert re.fullmatch(r"no room: no cores left: 3x2 \([\d.]+ % faster\), 3x3 \([\d.]+ % faster\)", full)


def test_the_steps_say_what_else_was_refused() -> None:
    job = half_way().job("digits")
    assert job.speed is not None
    restart = DecisionStep(StepKind.TAKEN, Allocation(3, 1), Allocation(2, 1), "restart", 1.2, "s saved")
    refusals = {
        str(one.allocation): f"{one.refusal}, {one.faster}" for one in considered(job, Allocation(2, 1), [restart])
    }
    assert refusals["3x1"].startswith("no gain: it does not pay for a restart, ")
    refusals = {str(one.allocation): one.verdict for one in considered(job, Allocation(2, 1))}
    assert refusals["3x1"] is Verdict.NOT_REACHED, "nothing says why not"
    held = DecisionStep(StepKind.TAKEN, Allocation(2, 2), Allocation(2, 1), "held")
    refusals = {
        str(one.allocation): f"{one.refusal}, {one.faster}" for one in considered(job, Allocation(2, 1), [held])
    }
    assert refusals["2x2"].startswith("no room: other jobs hold the capacity, ")
    assert refusals["3x3"].startswith("no room: other jobs hold the capacity, ")
    assert refusals["3x1"].startswith("not reached"), "it has fewer servers than what did not fit"


@pytest.mark.parametrize("objective", ["cheapest", "soonest"])
def test_a_cheap_job_compares_money(objective: str) -> None:
    world = World.of(nodes(2, 4.0))
    world.submit(spec("digits", budget=BUDGET, objective=objective))
    world.run(until=lambda: len(world.job("digits").epochs) == 8)
    decision = last_decision(world.history, "digits")
    assert decision is not None
    gains = [one.refusal for one in decision.choices() if one.verdict is Verdict.NO_GAIN]
    assert gains
    assert all(("costs" in why) == (objective == "cheapest") for why in gains), gains


def test_what_would_end_after_the_time_limit_is_too_late() -> None:
    world = World.of(nodes(2, 4.0))
    world.submit(spec("digits", budget=BUDGET, objective="cheapest", timeLimit="1d"))
    world.run(until=lambda: len(world.job("digits").epochs) == 8)
    job = world.job("digits")
    soon = replace(job, progress=replace(job.progress, run_seconds=86400 - 20.0))
    assert Verdict.TOO_LATE in verdicts(considered(soon, Allocation(3, 3)))
    assert Verdict.TOO_LATE not in verdicts(considered(job, Allocation(3, 3)))

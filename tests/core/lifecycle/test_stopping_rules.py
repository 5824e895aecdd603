"""Which jobs are ended early: none whose curve rests at its start, or is on its way, while it has money."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.decisions.early_ends import Case, ends, job_of, of_plateaus, trained
from coach.core.estimation.interval import CURVE_EPOCHS
from coach.core.jobs import fold
from coach.core.jobs.actions import Finish, SetStatus
from coach.core.jobs.events import ResumeRequested
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import forecast, stopping_rules
from coach.core.money import Ledger, to_money
from coach.core.spec.job import API_VERSION, TrainingJob
from coach.jobfiles.dump import to_yaml
from coach.report.models import curve_words

pytestmark = pytest.mark.standard

#: The first run of each kind.
CASES = {case.family: case for case in reversed(list(of_plateaus()))}


#: The validation losses of `fsdp_t5` in benchmarks/programs/public_programs, seed 1: slow, then faster.
FSDP_T5 = (
    3.5702, 3.1166, 2.8128, 2.6207, 2.5032, 2.3903, 2.3116, 2.2585, 2.1794, 2.1348, 2.0654, 2.0314,
    1.9719, 1.9665, 1.8558, 1.7716, 1.7171, 1.6296, 1.5274, 1.4133, 1.3013, 1.2254, 1.0927, 0.9881,
)  # fmt: skip


@pytest.mark.parametrize("epochs", [40, 100, 500, None])
@pytest.mark.parametrize("target", [1.5, 1.0, 0.54])
def test_a_public_program_whose_loss_falls_late_is_never_said_to_be_out_of_reach(
    target: float, epochs: int | None
) -> None:
    """It was ended at epoch 10."""
    before = [value for value in FSDP_T5 if value > target]
    for job in grown(before, target, epochs):
        assert stopping_rules.out_of_reach(job) is None, f"after {job.full_epoch_count} epochs"


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.family)
def test_a_curve_that_rests_first_reaches_its_target(case: Case) -> None:
    found = ends(case)
    assert case.reached is not None and found.now == {100: None, 200: None, 500: None, None: None}


def grown(values: Sequence[float], target: float, epochs: int | None) -> Iterator[Job]:
    """A job of a loss after each of its epochs, with money for so many; None: unlimited."""
    job = job_of(Case("", tuple(values), "loss", target, 1, None))
    for number, value in enumerate(values, 1):
        trained(job, number, value)
        cost = to_money(forecast.cheapest_epoch(job))
        job.money.ledger = Ledger(None if epochs is None else epochs * cost, number * cost)
        yield job


def of_values(values: Sequence[float], target: float, epochs: int | None) -> Job:
    """The same after all of them."""
    return list(grown(values, target, epochs))[-1]


@pytest.mark.parametrize("epochs", [40, 100, 500, None])
@pytest.mark.parametrize(
    ("name", "value", "target"),
    [
        ("exponential", lambda e: 2 * math.exp(-e / 8), 0.02),
        ("slower", lambda e: 0.3 + 3 * math.exp(-e / 25), 0.5),
        ("a line", lambda e: 2 - 0.05 * e, 0.6),
    ],
)
def test_a_curve_on_its_way_is_not_ended_before_it_arrives(
    name: str, value: Callable[[int], float], target: float, epochs: int | None
) -> None:
    values = [value(epoch) for epoch in range(1, 50) if value(epoch) > target][:39]
    for job in grown(values, target, epochs):
        assert stopping_rules.stop_decision(job) is None, f"{name}, after {job.full_epoch_count} epochs"


def test_a_trend_that_arrives_only_after_the_money_is_spent_ends_the_job() -> None:
    values = [0.9 + 2 * math.exp(-epoch) - 0.0005 * epoch for epoch in range(1, 31)]
    assert stopping_rules.stop_decision(of_values(values, 0.7, 100)) is not None
    assert stopping_rules.stop_decision(of_values(values, 0.7, 500)) is None


def test_the_noise_of_a_level_is_no_trend() -> None:
    """Half of all lines through noise fall, and with much money all of those would arrive."""
    noise = np.random.default_rng(1).normal(0.0, 0.01, 40)
    jobs = grown([2.0, 1.2, *(0.9 + noise)], 0.85, 4000)
    found = [stopping_rules.on_its_way(job) for job in jobs if job.full_epoch_count >= 8]
    assert sum(found) <= len(found) / 10


@pytest.mark.parametrize("epochs", [100, None])
def test_a_sentence_never_has_two_answers(epochs: int | None) -> None:
    """It levels off above its target and sees no way there, or reaches it with a chance, or reaches it: one of them."""
    levels_off = [2.0, 1.2, *[0.9] * 30]
    curves = [(list(case.values), case.target, case.metric) for case in CASES.values()] + [(levels_off, 0.3, "loss")]
    verdicts = 0
    for values, target, metric in curves:
        if metric != "loss":
            continue
        for job in grown(values[:40], target, epochs):
            if job.full_epoch_count < CURVE_EPOCHS:
                continue
            words, ended = curve_words(job), stopping_rules.out_of_reach(job) is not None
            no_way = ("too early to say" if job.full_epoch_count < 8 else "sees no way") in words
            likely = "is held after" in words
            assert no_way + likely + ("with a chance of" in words) == 1, words
            assert no_way == (forecast.remaining(job).last is None) == (not forecast.remaining(job).known)
            assert job.models.convergence is not None
            if likely:
                assert job.models.convergence.asymptote.low <= target, words
            if ended:
                assert no_way, words
                verdicts += 1
    assert verdicts, "the curve that levels off has some"


def test_a_job_resumed_after_an_early_end_is_not_ended_again() -> None:
    """Whatever its curve does; its limits still end it."""
    job = of_values([2.0, *[0.9] * 29], 0.3, None)
    found = stopping_rules.stop_decision(job)
    assert found is not None and found[0] is Reason.TARGET_BELOW_ASYMPTOTE and "coach resume x goes on" in found[1]
    fold.apply(job, Finish(1.0, "x", *found))
    fold.apply(job, SetStatus(1.0, "x", *found))
    curves = job.models.full_epoch_curves
    fold.apply(job, ResumeRequested(2.0, "x"))
    job.models.full_epoch_curves = curves  # those of the next epochs, which are as flat
    assert stopping_rules.stop_decision(job) is None and stopping_rules.out_of_reach(job) is not None


@pytest.mark.parametrize(
    ("changes", "early"),
    [
        ({}, False),
        ({"program": {"command": ["a"], "resumes": True}}, True),
        ({"stopEarly": True}, True),
        ({"program": {"command": ["a"], "resumes": True}, "stopEarly": False}, False),
        ({"program": {"command": ["a"], "resumes": True}, "target": None}, False),
    ],
)
def test_a_program_that_would_lose_all_is_ended_early_only_where_it_says_so(
    changes: dict[str, Any], early: bool
) -> None:
    spec = {"program": {"command": ["a"]}, "target": {"loss": 0.3}, "budget": {"unlimited": True}} | changes
    spec = {key: value for key, value in spec.items() if value is not None}
    document = {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": {"name": "x"}, "spec": spec}
    job = TrainingJob.from_json(document)
    assert job.spec.stop_early == early
    assert TrainingJob.from_json(yaml.safe_load(to_yaml(job))) == job, "its file reads as it was"


def test_the_rule_before_ended_most_of_them() -> None:
    assert sum(ends(case).before is not None for case in CASES.values()) >= 4

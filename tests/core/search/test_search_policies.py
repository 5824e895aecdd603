"""Which trial gets the next epoch: what every policy keeps to, and what each one prefers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from coach.core.search.freeze_thaw import FIRST, LEAST_TRIALS, FreezeThaw
from coach.core.search.trials import (
    AllToTheEnd,
    End,
    Halving,
    Hyperband,
    Median,
    Next,
    Search,
    SearchPolicy,
    Trial,
    TrialState,
)

POLICIES = (FreezeThaw, Halving, Hyperband, Median, AllToTheEnd)


def curve(end: float, pace: float = 4.0, epochs: int = 30) -> tuple[float, ...]:
    """A loss that falls from 1 to `end`."""
    return tuple(end + (1.0 - end) * math.exp(-(1 + epoch) / pace) for epoch in range(epochs))


#: Twelve trials; the eleventh is the best.
CURVES = [curve(0.2 + 0.05 * ((7 * at) % 12), 2.0, 12) for at in range(11)] + [curve(0.1, 2.0, 12)]


def run(
    policy: SearchPolicy, curves: Sequence[tuple[float, ...]], money: float, most: int = 12
) -> tuple[list[Trial], str]:
    """The trials that a policy has trained when it ends the search, or its money ends, and why."""
    trials: list[Trial] = []
    for spent in range(int(money)):
        view = Search(trials, money - spent, len(curves) - len(trials), 1.0, most)
        choice = policy.next(view)
        if isinstance(choice, End):
            return trials, choice.why
        if choice.trial is None:
            assert len(trials) < len(curves)
            trials.append(Trial(len(trials) + 1, (), 1.0))
        number = choice.trial or len(trials)
        one = trials[number - 1]
        assert one.state is TrialState.READY and len(one.values) < most
        trials[number - 1] = replace(one, values=curves[number - 1][: len(one.values) + 1])
    return trials, "money"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_search_ends_within_its_money_and_tries_what_it_may(policy: type[SearchPolicy]) -> None:
    trials, why = run(policy(), CURVES, 1000.0)
    assert why not in ("", "money")
    assert len(trials) == len(CURVES)
    assert min(one.best for one in trials) == pytest.approx(min(map(min, CURVES)), abs=0.005)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_orders_an_epoch_of_a_trial_that_cannot_have_one(policy: type[SearchPolicy]) -> None:
    busy, ended = (Trial(n, curve(0.2)[:5], 1.0, state) for n, state in ((1, TrialState.BUSY), (2, TrialState.ENDED)))
    full = Trial(3, curve(0.2), 1.0)
    assert isinstance(policy().next(Search([busy, ended, full], 100.0, 0, 1.0, 30)), End)


def eight(**changes: Trial) -> list[Trial]:
    """Trials enough for a comparison, of which seven have ended at 0.5."""
    return [Trial(n, curve(0.5), 1.0, TrialState.ENDED) for n in range(1, LEAST_TRIALS)] + list(changes.values())


def test_freeze_thaw_prefers_what_is_expected_to_fall_furthest() -> None:
    flat, falling = Trial(8, curve(0.45)[:12], 1.0), Trial(9, curve(0.1)[:6], 1.0)
    choice = FreezeThaw().next(Search(eight(a=flat, b=falling), 50.0, 0, 1.0, 30))
    assert isinstance(choice, Next) and choice.trial == 9


def test_freeze_thaw_prefers_the_cheaper_of_two_equal_trials() -> None:
    dear, cheap = Trial(8, curve(0.1)[:6], 3.0), Trial(9, curve(0.1)[:6], 1.0)
    choice = FreezeThaw().next(Search(eight(a=dear, b=cheap), 50.0, 0, 1.0, 30))
    assert isinstance(choice, Next) and choice.trial == 9
    held, paused = replace(dear, cost=1.0), replace(cheap, start=2.0)
    choice = FreezeThaw().next(Search(eight(a=held, b=paused), 50.0, 0, 1.0, 30))
    assert isinstance(choice, Next) and choice.trial == 8


def test_freeze_thaw_goes_back_to_a_trial_that_it_paused() -> None:
    trials, _ = run(FreezeThaw(), CURVES, 70.0)
    epochs = sorted(len(one.values) for one in trials)
    assert len(trials) > LEAST_TRIALS
    assert epochs[0] == FIRST and epochs[-1] > FIRST, "the bad ones stay paused, a good one came back"


@pytest.mark.parametrize("money", [0.0, 0.5])
def test_freeze_thaw_ends_where_the_money_covers_no_epoch(money: float) -> None:
    choice = FreezeThaw().next(Search(eight(a=Trial(8, curve(0.1)[:6], 1.0)), money, 5, 1.0, 30))
    assert choice == End(f"the money left, {money:.4g}, covers no further epoch")


def test_freeze_thaw_ends_when_nothing_is_to_be_gained() -> None:
    flat = Trial(8, (*curve(0.3), *[0.3] * 60), 1.0)
    choice = FreezeThaw().next(Search(eight(a=flat), 1e3, 0, 1.0, 95))
    assert isinstance(choice, End) and "no improvement" in choice.why


def test_freeze_thaw_takes_the_parameters_that_promise_most() -> None:
    """The end of a trial is what its first parameter lacks of 0.7; the second one means nothing."""
    places = [(0.05 * at, (0.37 * at) % 1.0) for at in range(18)]
    trials = [Trial(n, curve(0.1 + abs(at[0] - 0.7))[:6], 1.0, at=at) for n, at in enumerate(places, start=1)]
    candidates = ((0.05, 0.5), (0.95, 0.1), (0.71, 0.9), (0.3, 0.2))
    ended = [replace(one, state=TrialState.ENDED) for one in trials]
    choice = FreezeThaw().next(Search(ended, 50.0, 4, 1.0, 30, candidates))
    assert isinstance(choice, Next) and (choice.trial, choice.candidate) == (None, 2)
    unknown = [replace(one, at=()) for one in ended]
    without = FreezeThaw().next(Search(unknown, 50.0, 4, 1.0, 30, candidates))
    assert isinstance(without, Next) and without.candidate == 0, "nothing is known of them"


def test_more_money_is_expected_to_bring_no_less() -> None:
    view = Search(eight(a=Trial(8, curve(0.1)[:6], 1.0)), 50.0, 5, 1.0, 30)
    gains = [FreezeThaw().outlook(view, money) for money in (0.5, 1.0, 5.0, 20.0)]
    assert gains == sorted(gains) and gains[0] == 0.0 < gains[1]


def test_halving_takes_the_best_third_of_each_rung_to_the_next() -> None:
    trials = [Trial(n, (1.0 - 0.1 * n,), 1.0) for n in range(1, 10)]
    promoted = []
    while (choice := Halving().next(Search(trials, 100.0, 1, 1.0, 30))) and isinstance(choice, Next) and choice.trial:
        promoted.append(choice.trial)
        trials[choice.trial - 1] = Trial(choice.trial, trials[choice.trial - 1].values * 3, 1.0, TrialState.BUSY)
    assert sorted(promoted) == [7, 8, 9] and choice == Next(None, "a new trial")


def test_hyperband_begins_each_bracket_a_rung_later() -> None:
    curves = [curve(0.2)] * 4
    trials, _ = run(Hyperband(), curves, 1 + 3 + 9 + 27, 30)
    assert [len(one.values) for one in trials] == [1, 3, 9, 27]


def test_the_median_rule_stops_a_bad_trial_for_good() -> None:
    done = [Trial(n, curve(0.2), 1.0, TrialState.ENDED) for n in range(1, 6)]
    bad = Trial(6, (1.0, 0.99), 1.0)
    policy = Median()
    assert policy.next(Search([*done, bad], 100.0, 1, 1.0, 30)) == Next(None, "a new trial")
    assert isinstance(policy.next(Search([*done, bad], 100.0, 0, 1.0, 30)), End)

"""A hang is noticed by what does not happen any more, and nobody else is taken for hanging."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle.stall_timeout import (
    LONGER,
    STALL_FACTOR,
    STALL_SECONDS,
    UNKNOWN_FORMING_SECONDS,
    UNKNOWN_LOADING_SECONDS,
    UNKNOWN_SECONDS,
    stall_timeouts,
)
from coach.platforms.gang_client import POLL_SECONDS, Progressing
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec

STATIC = {"name": "static", "workers": 1, "servers": 1}


def lived(epochs: int, **changes: object) -> World:
    world = World.of(nodes(1, 4.0))
    dynamics = FaultyDynamics(data_size=6400, evaluate_seconds=0.7)
    world.submit(spec(maxEpochs=epochs + 1, policy=STATIC, target={"loss": 0.01}, **changes), dynamics)
    world.run(until=lambda: len(world.orders()) == epochs + 1)
    return world


def note_all(progressing: Progressing, answers: Iterable[tuple[float, str, int]]) -> list[str]:
    return [words for at, state, version in answers if (words := progressing.note(state, version, at))]


# -- what is expected -------------------------------------------------------------------------------------


def test_of_a_first_epoch_nothing_is_known() -> None:
    (order,) = lived(0).orders()
    assert order.stall_timeouts == StallTimeouts(
        UNKNOWN_LOADING_SECONDS, UNKNOWN_FORMING_SECONDS, UNKNOWN_SECONDS, UNKNOWN_SECONDS
    )
    assert UNKNOWN_FORMING_SECONDS < UNKNOWN_SECONDS, "its members are warm, and have loaded all there is to load"
    own = lived(0, data={"format": "custom"}).orders()[0]
    assert own.stall_timeouts and own.stall_timeouts.forming == UNKNOWN_LOADING_SECONDS, "members read their own data"


def test_later_epochs_are_expected_to_be_like_the_earlier_ones() -> None:
    world = lived(3)
    job = world.job()
    expected = world.orders()[-1].stall_timeouts
    assert expected is not None
    step = max(epoch.report.train_seconds for epoch in job.epochs) * job.spec.batch_size / 6400
    assert expected.training == pytest.approx(STALL_SECONDS + STALL_FACTOR * step)
    assert expected.evaluating == pytest.approx(STALL_SECONDS + STALL_FACTOR * 0.7)
    assert expected.training < job.epochs[-1].seconds * 3 + 10, "sooner than the deadline"


def test_a_new_pod_may_take_longer_to_start_since_it_imports_the_framework() -> None:
    world = World.of(nodes(2, 4.0))
    world.submit(spec(maxEpochs=12, target={"loss": 0.01}))
    world.run()
    orders = [order for order in world.orders() if order.number > 1]
    seen = set(world.orders()[0].pods)
    for order in orders:
        assert order.stall_timeouts is not None
        new = not seen >= set(order.pods)
        assert (order.stall_timeouts.starting > UNKNOWN_SECONDS) is new, order
        seen = set(order.pods)  # Coach gives back what an epoch does not use
    assert len({len(order.pods) for order in world.orders()}) > 1, "pods were added"


def test_each_further_attempt_may_take_longer() -> None:
    world = World.of(nodes(1, 4.0))
    dynamics = FaultyDynamics(fault=lambda order: (Reason.STALLED, 0.5) if order.number == 3 else None)
    world.submit(spec(maxEpochs=5, policy=STATIC, target={"loss": 0.01}), dynamics)
    world.run()
    first, second, third = (order.stall_timeouts for order in world.orders() if order.number == 3)
    assert first and second and third
    assert second.training == pytest.approx(first.training * LONGER)
    assert third.evaluating == pytest.approx(first.evaluating * LONGER**2)
    assert world.job().reason is Reason.STALLED
    assert stall_timeouts(world.job()).training == pytest.approx(first.training * LONGER**2)


# -- what is seen -----------------------------------------------------------------------------------------

USUAL = StallTimeouts(30.0, 20.0, 10.0, 12.0)


@pytest.mark.parametrize(
    ("state", "most"), [("starting", 30.0), ("forming", 20.0), ("training", 10.0), ("evaluating", 12.0)]
)
def test_a_version_that_stands_still_for_too_long_is_a_hang_in_any_state(state: str, most: float) -> None:
    progressing = Progressing(USUAL, 0.0)
    polls = [(POLL_SECONDS * n, state, 7) for n in range(1, 200)]
    found = note_all(progressing, polls)
    seconds = float(found[0].removeprefix("no progress for ").partition(" ")[0])
    assert found[0].endswith(f"while {state}") and most < seconds <= most + 3 * POLL_SECONDS


def test_progress_now_and_then_is_enough() -> None:
    progressing = Progressing(USUAL, 0.0)
    assert not note_all(progressing, ((0.5 * n, "training", n // 15) for n in range(1, 1000)))


def test_steps_that_are_slower_than_ever_before_are_waited_for_once_one_was_seen() -> None:
    progressing = Progressing(USUAL, 0.0)
    polls = [(0.5 * n, "training", n // 18) for n in range(1, 54)]  # nine seconds a step
    assert not note_all(progressing, polls)
    at = polls[-1][0]
    patient = STALL_SECONDS + STALL_FACTOR * 8.0
    assert not note_all(progressing, ((at + 0.5 * n, "training", 99) for n in range(1, int(patient))))


def test_a_handler_that_stood_still_blames_nobody() -> None:
    progressing = Progressing(USUAL, 0.0)
    assert not progressing.note("training", 3, 1.0)
    assert not progressing.note("training", 3, 3600.0), "it was we who did not look"
    assert not progressing.note("training", 4, 3600.5)


def test_states_without_a_limit_have_none() -> None:
    assert not note_all(Progressing(USUAL, 0.0), ((float(n), "idle", 1) for n in range(500)))

"""The membership protocol in a simulated world: whatever happens, no step is lost or applied twice, and all ends."""

import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from training.membership.coordinator import Coordinator
from training.membership.member import Clock, Member
from training.membership.messages import (
    Alive,
    Broken,
    Entered,
    Give,
    Hello,
    Left,
    Lose,
    Order,
    Out,
    Ping,
    Send,
    Take,
    Timer,
    View,
    Waiting,
    decode,
    encode,
)

from tests.functions.membership.histories import FAULTS, Plan, Violation, World, drawn

#: The first history, and how many follow: few always, all in the full tier.
BLOCKS = [pytest.param(0, 200, marks=pytest.mark.standard)]
BLOCKS += [pytest.param(first, 1000, marks=pytest.mark.full) for first in range(0, 10_000, 1000)]


@pytest.mark.parametrize(("first", "many"), BLOCKS)
def test_every_step_is_applied_once_and_every_history_ends(first: int, many: int) -> None:
    for number in range(first, first + many):
        try:
            World(drawn(number)).run()
        except Violation as violation:
            pytest.fail(f"history {number}: {violation}")


@pytest.mark.parametrize("number", [42810, 318105])
def test_histories_that_once_failed_end(number: int) -> None:
    """Both after a restart of the scheduler.

    42810: a member enters a view before the new coordinator hears of that view from another. 318105: members enter the
    former coordinator's first view when the new one has founded a group without them.
    """
    World(drawn(number)).run()


times = st.floats(0, 4, allow_nan=False)
faults = st.lists(st.tuples(times, st.sampled_from(sorted(set(FAULTS))), st.integers(0, 1 << 16)), max_size=8)


@given(st.integers(0, 1 << 20), st.integers(1, 4), st.integers(2, 10), st.integers(1, 3), faults)
@example(1, 1, 2, 1, [(1.5, "freeze", 7), (2.0, "cut", 0), (2.0, "replace", 5), (3.0, "replace", 1)])
def test_no_history_that_hypothesis_finds_breaks_it(
    seed: int, workers: int, epoch: int, epochs: int, events: list
) -> None:
    World(Plan(seed, workers, epoch, epochs, tuple(sorted(events)))).run()


class AppliesAgain(Member):
    """Takes the kept result without asking whether it has applied that exchange."""

    def gathered(self, clocks: list[Clock]) -> list[Give | Take]:
        orders = super().gathered(clocks)
        top = max(clock.steps for clock in clocks if clock.steps is not None)
        givers = [rank for rank, clock in enumerate(clocks) if clock == Clock(top, True)]
        me = self.view.members.index(self.name)
        if not givers:
            return orders
        if me == givers[0]:
            return [Give(name, clocks[rank].steps is None) for rank, name in enumerate(self.view.members) if rank != me]
        return [Take(self.view.members[givers[0]], clocks[me].steps is None, top)]


class ForgetsItsClock(Member):
    """Repeats the exchange under way without comparing clocks."""

    def gathered(self, clocks: list[Clock]) -> list[Give | Take]:
        return super().gathered([clock if clock.steps is None else Clock(1, clock.kept) for clock in clocks])


class GoesOverAlone(Member):
    """Goes to the next view when it is ready itself."""

    def completed(self, number: int, offers: tuple[float, float]) -> list:
        if self.offered is not None and self.view is not None:
            distance, members = self.offered.number - self.view.number, len(self.view.members)
            offers = (float(members * distance), float(members * distance**2))
        return super().completed(number, offers)


@pytest.mark.parametrize("mutant", [AppliesAgain, ForgetsItsClock, GoesOverAlone])
def test_without_one_of_its_checks_histories_fail(mutant: type[Member]) -> None:
    def fails(number: int) -> bool:
        try:
            World(drawn(number), mutant).run()
        except Violation:
            return True
        return False

    assert any(fails(number) for number in range(300))


def test_the_simulated_world_has_what_the_protocol_is_for() -> None:
    """Else its histories would prove nothing: survivors that are behind by one, views that fail to form, all of it."""
    seen = set()

    class Watched(Member):
        def gathered(self, clocks: list[Clock]) -> list[Give | Take]:
            known = {clock.steps for clock in clocks if clock.steps is not None}
            seen.add(f"clocks differ by {max(known) - min(known)}")
            orders = super().gathered(clocks)
            seen.update(f"{type(order).__name__} {order.whole}" for order in orders)
            return orders

        def not_formed(self, number: int) -> list:
            seen.add("not formed")
            return super().not_formed(number)

        def completed(self, number: int, offers: tuple[float, float]) -> list:
            before = self.view
            commands = super().completed(number, offers)
            if before is not None and number != before.number:
                seen.add("completed after an order")
            if self.view != before:
                seen.add("went over")
            return commands

    for number in range(400):
        World(drawn(number), Watched).run()
    wanted = {
        "clocks differ by 0",
        "clocks differ by 1",
        "Give True",
        "Give False",
        "Take True",
        "Take False",
    }
    assert seen >= wanted | {"not formed", "went over", "completed after an order"}


def test_offers_agree_only_when_all_are_of_one_view() -> None:
    """5 + 6 + 7 is 3 x 6: the sum alone would deceive the member that offers 6."""
    draws = random.Random(1)
    for _ in range(2000):
        count = draws.randint(2, 5)
        numbers = [draws.randint(0, 8) for _ in range(count)]
        members = []
        for rank, number in enumerate(numbers):
            each = Member(f"{rank}.a")
            names = tuple(f"{other}.a" for other in range(count))
            each.hear(Order(View(1, "p/1", names)))
            each.formed(1)
            each.enter()
            each.settled(1)
            if number:
                each.hear(Order(View(number + 1, f"p/{number + 1}", names, planned=True)))
                each.formed(number + 1)
            members.append(each)
        offers = [each.offer() for each in members]
        sums = (sum(offer[0] for offer in offers), sum(offer[1] for offer in offers))
        for each in members:
            each.completed(1, sums)
        went = {each.view.number for each in members}
        assert went == ({numbers[0] + 1} if len(set(numbers)) == 1 else {1})


@pytest.mark.parametrize(
    "message",
    [
        Hello(),
        Hello(View(3, "a/3", ("0.a", "1.b"), ("1.b",), planned=True), intact=True, seen=4, idle=True),
        Entered(View(1, "a/1", ("0.a",)), 7),
        Left(),
        Left(View(2, "a/2", ("0.a",), planned=True)),
        Broken(3),
        Order(View(5, "a/5", ("0.a", "2.c"), ("0.a", "2.c"))),
        Out("because"),
    ],
)
def test_a_message_survives_the_way_through_json(message: object) -> None:
    assert decode(json.loads(json.dumps(encode(message)))) == message


def sent(commands: list, kind: type) -> dict:
    return {each.member: each.message for each in commands if isinstance(each, Send) and isinstance(each.message, kind)}


def started(*names: str) -> Coordinator:
    """A coordinator whose members train."""
    coordinator = Coordinator("t", len(names))
    for name in names:
        orders = sent(coordinator.hear(name, Hello()), Order)
    for name in names:
        coordinator.hear(name, Entered(orders[name].view, 0))
    assert coordinator.entered == set(names)
    return coordinator


def test_a_hang_is_told_from_waiting() -> None:
    coordinator = started("0.a", "1.b", "2.c")
    asked = coordinator.hear("0.a", Waiting(1))
    assert set(sent(asked, Ping)) == {"1.b", "2.c"}
    timers = {each.key[1]: each.key for each in asked if isinstance(each, Timer)}
    coordinator.hear("1.b", Alive())
    assert not [each for each in coordinator.timed_out(timers["1.b"]) if isinstance(each, Lose)]
    commands = coordinator.timed_out(timers["2.c"])
    assert [each.member for each in commands if isinstance(each, Lose)] == ["2.c"]
    orders = sent(commands, Order)
    assert set(orders) == {"0.a", "1.b"} and orders["0.a"].view.members == ("0.a", "1.b")


def test_a_worker_that_joins_before_the_scheduler_hears_of_it_waits() -> None:
    coordinator = started("0.a")
    assert not coordinator.hear("1.b", Hello())
    orders = sent(coordinator.resize({0, 1}), Order)
    assert orders["0.a"].view.members == ("0.a", "1.b") and orders["0.a"].view.newcomers == ("1.b",)


def test_the_last_worker_with_the_state_stays_until_another_has_it() -> None:
    coordinator = started("0.a")
    coordinator.hear("1.b", Hello())
    first = sent(coordinator.resize({1}), Order)["0.a"].view
    assert first.members == ("0.a", "1.b")
    coordinator.hear("0.a", Entered(first, 4))
    second = sent(coordinator.hear("1.b", Entered(first, 4)), Order)["0.a"].view
    assert second.members == ("1.b",)

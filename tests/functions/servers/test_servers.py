"""Parameter servers: their optimizers, who owns which slice, and what they do in a simulated world."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from training.membership.coordinator import Coordinator
from training.membership.messages import Order, View, worker_of
from training.membership.slices import assign, bounds, pieces
from training.servers import optimizers
from training.servers.optimizers import Rule
from training.servers.server import Push, Server

from tests.functions.membership.histories import Group, Process, Violation
from tests.functions.servers.histories import ServedWorld, drawn, update

TORCH = json.loads(Path(__file__).with_name("optimizers.json").read_text())


@pytest.mark.parametrize("case", TORCH["cases"])
def test_an_optimizer_does_what_pytorchs_does(case: str) -> None:
    rule = Rule(**TORCH["cases"][case]["rule"])
    arrays = [np.array(TORCH["weights"], np.float32)]
    for count, (gradient, after) in enumerate(zip(TORCH["gradients"], TORCH["cases"][case]["weights"], strict=True), 1):
        given = np.array(gradient, np.float32)
        factor = optimizers.clip_factor(rule, float(given.astype(float) @ given))
        optimizers.apply(rule, arrays, given, count, factor)
        np.testing.assert_allclose(arrays[0], after, rtol=2e-6, atol=1e-7)


def test_gradients_are_added_in_the_order_of_the_workers() -> None:
    large, small = np.array([1e8], np.float32), np.array([3.0], np.float32)
    assert optimizers.add_up([large, small, small]) == large + small + small
    assert optimizers.add_up([small, small, large]) != large + small + small


@pytest.mark.parametrize("size", [1, 5, 431_080, 10_000_000, 60_000_000])
def test_slices_are_balanced_by_bytes_and_few_move(size: int) -> None:
    starts = bounds(size)
    sizes = [stop - start for start, stop in itertools.pairwise(starts)]
    assert starts[0] == 0 and starts[-1] == size and all(sizes)
    owner: list[int | None] = [None] * len(sizes)
    had = 0
    for servers in (each for each in (1, 2, 3, 2, 4, 1) if each <= len(sizes)):
        before = [of if of is not None and of < servers else None for of in owner]
        owner = list(assign(sizes, before, servers))
        loads = [sum(n for n, of in zip(sizes, owner, strict=True) if of == server) for server in range(servers)]
        assert all(loads) and max(loads) - min(loads) <= max(sizes), loads
        # No more than the servers that come get, or those that go had.
        moved = sum(old != new for old, new in zip(before, owner, strict=True))
        assert moved <= max(len(sizes) - had * len(sizes) // max(servers, 1), before.count(None)) + servers
        covered = sorted(number for of in range(servers) for piece in pieces(owner, of) for number in piece)
        assert covered == list(range(len(sizes)))
        had = servers


#: The first history, and how many follow: few always, all in the full tier.
BLOCKS = [pytest.param(0, 100, marks=pytest.mark.standard)]
BLOCKS += [pytest.param(first, 500, marks=pytest.mark.full) for first in range(0, 10_000, 500)]


@pytest.mark.parametrize(("first", "many"), BLOCKS)
def test_every_update_is_applied_once_and_every_history_ends(first: int, many: int) -> None:
    moved = survived = 0
    for number in range(first, first + many):
        world = ServedWorld(drawn(number))
        try:
            world.run()
        except Violation as violation:
            pytest.fail(f"history {number}: {violation}")
        moved, survived = moved + world.moved, survived + world.survived
    assert moved > many, "slices migrate in these histories"
    assert survived > many / 2, "servers die in these histories, and steps are not trained again"


ONCE_FAILED = {
    "members go to a view whose server has died": [1208, 1622, 1935, 3459, 4458, 6519, 6911],
    "members offer a view before a server has its order": [4542, 4546, 5416, 7817, 9973],
    "a server dies with slices that the next view gives to others": [3564, 5477],
    "members go to a view that was dropped, whose server was released": [4277, 9896],
    "a server is released before it answers a ping": [15392, 30039],
    "a worker waits in a view that the others have left": [5483],
    "a server keeps what it heard of planned views that were dropped": [29014],
}


@pytest.mark.parametrize("cause", ONCE_FAILED)
def test_histories_that_once_did_not_end_do(cause: str) -> None:
    for number in ONCE_FAILED[cause]:
        ServedWorld(drawn(number)).run()


def test_a_server_forgets_what_it_heard_of_views_that_were_dropped() -> None:
    server = Server("0.s@host:0", update, lambda gradients: 1.0)
    for number in range(1, 100):
        view = View(number, f"c/{number}", ("0.1",), planned=number > 1, servers=(server.name,), owner=(0,), founded=1)
        server.hear(Order(view))
        server.join("0.1", number)
        server.say("0.1", number, 0)
    assert server.view is not None and server.view.number == 1
    assert set(server._ordered) == set(server._joined) == {each[0] for each in server._early} == set(range(92, 100))


class AppliesAgain(Server):
    """Does not ask whether a slice has had that step's update."""

    def _push(self, worker: str, push: Push) -> None:
        for number in push.piece:
            if number in self.slices:
                self.slices[number].applied = -1
        super()._push(worker, push)


class Keeps(Server):
    """Does not ship what others own."""

    def migrate(self) -> None:
        pass


@pytest.mark.parametrize("broken", [AppliesAgain, Keeps])
def test_the_histories_find_a_server_that_is_wrong(broken: type[Server]) -> None:
    with pytest.raises(Violation):
        for number in range(300):
            ServedWorld(drawn(number), lambda name: broken(name, update, lambda gradients: 1.0)).run()


class Forgets(Coordinator):
    """Does not ask who has the last copy of what a server had."""

    def _by_copy(self, member: str) -> tuple[int, int]:
        return 0, worker_of(member)


class CopiesLate(ServedWorld):
    """Its first worker has a copy when it goes to a view, where servers may have its next gradient already."""

    def _broke(self, process: Process, turn: int, group: Group) -> None:
        process.stepped = True
        super()._broke(process, turn, group)


@pytest.mark.parametrize(
    ("number", "world", "coordinator"), [(291, ServedWorld, Forgets), (50, CopiesLate, Coordinator)]
)
def test_the_histories_find_a_copy_that_is_not_used_or_wrong(
    number: int, world: type[ServedWorld], coordinator: type[Coordinator]
) -> None:
    ServedWorld(drawn(number)).run()
    with pytest.raises(Violation, match="steps"):
        world(drawn(number), coordinator=coordinator).run()

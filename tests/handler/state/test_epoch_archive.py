"""The epochs of a job, packed, are a list as any other, and few of them are in memory."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.jobs.epoch import Epoch
from coach.handler.state import epoch_archive
from coach.handler.state.epoch_archive import EpochArchive
from tests.core.lifecycle.faulty_cluster import World, nodes, spec


def lived(epochs: int) -> list[Epoch]:
    world = World.of(nodes(2, 4.0))
    world.submit(spec("a", maxEpochs=epochs, target={"loss": 0.01}))
    world.run()
    return list(world.job("a").epochs)


EPOCHS = lived(14)


def packed_at(*places: int, epochs: int = len(EPOCHS)) -> EpochArchive:
    """The first `epochs`, packed whenever so many had come."""
    made = EpochArchive()
    for number, epoch in enumerate(copy.deepcopy(EPOCHS[:epochs]), 1):
        made.append(epoch)
        if number in places:
            made.pack()
    return made


@given(st.lists(st.integers(1, len(EPOCHS)), max_size=4), st.integers(0, len(EPOCHS)))
def test_packed_epochs_answer_whatever_a_list_answers(places: list[int], count: int) -> None:
    made, plain = packed_at(*places, epochs=count), EPOCHS[:count]
    asks: list[Any] = [
        list, len, bool, repr, sorted_by_end, lambda e: list(reversed(e)), lambda e: [*e, *e], copy.copy,
        copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e)),
        lambda e: e == EPOCHS[:count], lambda e: EPOCHS[:count] == e, lambda e: e != EPOCHS, lambda e: e[3:-2],
        lambda e: e[::-3], lambda e: EPOCHS[2] in e, lambda e: e.count(EPOCHS[0]), lambda e: e[-1:],
    ]  # fmt: skip
    for ask in asks:
        assert ask(made) == ask(plain)
    for index in range(-count - 2, count + 2):
        assert at(made, index) == at(plain, index)
    assert made == packed_at(epochs=count) and made == EpochArchive(plain)


def sorted_by_end(epochs: list[Epoch]) -> list[Epoch]:
    return sorted(epochs, key=lambda epoch: -epoch.ended_at)


def at(epochs: list[Epoch], index: int) -> Any:
    try:
        return epochs[index]
    except IndexError:
        return "no such epoch"


@given(st.lists(st.integers(1, len(EPOCHS)), max_size=4), st.integers(1, len(EPOCHS)))
def test_packed_epochs_change_as_a_list_does(places: list[int], count: int) -> None:
    changes: list[Any] = [
        lambda e: e.append(EPOCHS[0]), lambda e: e.extend(EPOCHS[:2]), lambda e: e.__iadd__(EPOCHS[:2]),
        lambda e: e.__delitem__(slice(count - 1, None)), lambda e: e.__delitem__(slice(2, None)), lambda e: e.pop(),
        lambda e: e.pop(0), lambda e: e.clear(), lambda e: e.insert(1, EPOCHS[3]), lambda e: e.remove(EPOCHS[0]),
        lambda e: e.reverse(), lambda e: e.__setitem__(0, EPOCHS[-1]),
    ]  # fmt: skip
    for change in changes:
        made, plain = packed_at(*places, epochs=count), EPOCHS[:count]
        change(made), change(plain)
        assert made == plain and len(made) == len(plain)
        made.pack()
        assert made == plain and len(made) == len(plain)


def test_the_last_epoch_is_never_packed_for_it_may_still_be_charged() -> None:
    made = packed_at(3, 9)
    assert made.count_packed == 8 and len(made.last) == len(EPOCHS) - 8
    made.pack()
    assert made.count_packed == len(EPOCHS) - 1
    made[-1].cost += 7
    made.append(copy.deepcopy(EPOCHS[0]))
    made.pack()
    assert made[-2].cost == EPOCHS[-1].cost + 7


def test_few_epochs_are_unpacked_at_a_time_whoever_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_archive, "UNPACKED", 3 * len(EPOCHS))
    lately = epoch_archive._LATELY
    lately.clear()
    many = [packed_at(place, len(EPOCHS)) for place in range(1, len(EPOCHS))]
    lately.clear()
    assert all(len(one) == len(EPOCHS) and one[-1] == EPOCHS[-1] for one in many)
    assert not lately, "nobody looked at what is packed"
    for one in many:
        assert one == EPOCHS
    assert 0 < sum(map(len, lately.values())) <= 3 * len(EPOCHS)
    assert many[0] == EPOCHS and many[0][0] is many[0][0], "unpacked once for who looks again and again"

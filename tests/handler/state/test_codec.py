"""Records go to JSON and come back as they were."""

from __future__ import annotations

import dataclasses
import json
import types
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.handler.state.codec import EVENTS, TYPES, decode, encode

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | FINITE | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Everything that a field of this type may hold."""
    if hint is Any:
        return TREES
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(*(values(arm) for arm in get_args(hint)))
    if get_origin(hint) is tuple:
        arms = get_args(hint)
        if len(arms) == 2 and arms[1] is Ellipsis:
            return st.lists(values(arms[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, arms))
    if get_origin(hint) is dict:
        return st.dictionaries(st.text(max_size=8), values(get_args(hint)[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{f.name: values(hints[f.name]) for f in dataclasses.fields(hint)})
    if isinstance(hint, type) and issubclass(hint, tuple):
        return st.builds(hint, **{name: values(of) for name, of in get_type_hints(hint).items()})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    simple = {
        bool: st.booleans(),
        int: st.integers(-(10**20), 10**20),
        float: FINITE,
        str: st.text(max_size=20),
        type(None): st.none(),
    }
    return simple[hint]


@given(st.sampled_from(sorted(TYPES)).flatmap(lambda name: values(TYPES[name])))
def test_every_record_comes_back_as_it_was_written(record: Any) -> None:
    body = encode(record)
    back = decode(type(record).__name__, body)
    assert back == record
    assert encode(back) == body
    json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_every_event_and_every_action_can_be_written() -> None:
    kinds = {kind for module in (ev, act) for kind in vars(module).values() if isinstance(kind, type)}
    events = {kind for kind in kinds if issubclass(kind, ev.Event)} - {ev.JobEvent}
    assert events == {TYPES[name] for name in EVENTS}
    assert set(TYPES.values()) == events | {kind for kind in kinds if issubclass(kind, act.Action)} - {act.Action}


def test_a_type_of_a_later_version_is_refused() -> None:
    with pytest.raises(KeyError):
        decode("JobTeleported", "{}")


@pytest.mark.parametrize("body", ["", "{", "[]", '{"at": "x"}', '{"at": 1.0}', "null"])
def test_a_record_that_was_cut_short_is_refused(body: str) -> None:
    with pytest.raises(ValueError):
        decode("TimerFired", body)

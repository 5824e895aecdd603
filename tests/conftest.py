"""What holds for all tests: where random cases come from, and the tier of each test."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ReadOnlyDatabase
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from coach.core.errors import PermanentError
from tests.cpu_time import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]

#: The distributions whose policies these tests are about.
OURS = {"coach-trainer", "coach-research"}

gc.disable()  # until all tests are read: see pytest_collection_finish

# A test that asks make something gets the same answer by hand and under `make test`, whose own flags are inherited.
for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES"):
    os.environ.pop(name, None)

# A user's own defaults are no part of any test.
os.environ["COACH_DEFAULTS"] = os.devnull

#: What `make fuzz` found. Every run tries these cases first, whatever the profile.
COUNTEREXAMPLES = Path(__file__).parent / "counterexamples"
found = DirectoryBasedExampleDatabase(COUNTEREXAMPLES)

# A busy machine is no failure, nor is the first example's import of SciPy: no test asserts on time.
# The parent is named: where the variable CI is set, Hypothesis has loaded a profile that forbids the database.
settings.register_profile(
    "patient", settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Twenty cases of each property; `make fuzz` draws more.
settings.register_profile("fixed", settings.get_profile("patient"), max_examples=20, database=ReadOnlyDatabase(found))
settings.register_profile("fuzz", settings.get_profile("patient"), database=found)
settings.load_profile("fixed")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Each test is of one tier, and every property draws the same cases in every run, but for a search.

    Hypothesis's own `derandomize` and `seed` would not do: both forbid the database, and cases would still follow from
    the constants in all modules imported so far.
    """
    for item in items:
        if item.get_closest_marker("mxnet"):
            item.add_marker("processes")
        if not any(item.get_closest_marker(tier) for tier in ("standard", "full")):
            item.add_marker("standard" if item.get_closest_marker("processes") else "quick")
    yield
    fixed = settings.get_current_profile_name() == "fixed"
    if fixed:
        providers._get_local_constants = Constants
    for item in items:
        if item.get_closest_marker("hypothesis"):
            item.function._hypothesis_internal_use_seed = 0 if fixed else None
            # By default the key is a digest of the test's source: an edit would forget what was found.
            item.function._hypothesis_internal_database_key = item.name.encode()


@cache
def _no_torch() -> str:
    """Why no PyTorch can be used here, as the environment was when the first test asked; empty where one can."""
    from coach.platforms.local import pytorch_runtime

    try:
        pytorch_runtime.torch()
    except PermanentError as error:
        return str(error)
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of PyTorch are skipped where no torch is found; looking for one takes seconds."""
    if item.get_closest_marker("pytorch") and os.environ.get("COACH_REQUIRE_ALL") != "1" and (why := _no_torch()):
        pytest.skip(why)


def pytest_sessionstart() -> None:
    """Policies of other packages that are installed here change no answer of these tests."""
    others = {
        point.name for point in entry_points(group="coach.policies") if point.dist and point.dist.name not in OURS
    }
    if others:
        from coach import plugins

        plugins.entry_points = lambda **of: [point for point in entry_points(**of) if point.name not in others]


def pytest_collection_finish() -> None:
    """The garbage collector looks at all that was imported no more: that took a third of some tests' time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)

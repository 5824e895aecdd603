"""A pytest plugin: random properties with new cases, again and again for a time (`make fuzz`).

    pytest -m hypothesis --hypothesis-profile=fuzz -p tests.fuzz --fuzz-seconds 60

What fails is in tests/counterexamples afterwards, and every later run of that test begins with it.
"""

from __future__ import annotations

import random
import time

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seconds", type=float, default=60.0, help="how long to search (default: 60)")


def pytest_runtestloop(session: pytest.Session) -> bool:
    """In another order each time, so that a short search gets everywhere; what failed is not run again."""
    ends = time.monotonic() + session.config.getoption("--fuzz-seconds")
    left = [] if session.config.option.collectonly else list(session.items)
    rounds = 0
    while left and time.monotonic() < ends:
        random.SystemRandom().shuffle(left)
        for item, following in zip(list(left), [*left[1:], None], strict=True):
            failures = session.testsfailed
            over = time.monotonic() > ends
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=None if over else following)
            if session.testsfailed > failures:
                left.remove(item)
            if over:
                break
        rounds += 1
    print(f"\n{len(session.items)} properties, {rounds} rounds")
    return True

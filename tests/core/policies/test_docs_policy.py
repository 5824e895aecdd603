"""The policy that docs/how-to/write-a-policy.md shows works as it is written there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coach.core.policies.api.parameters import parsed
from coach.plugins import POLICIES
from tests.core.policies.policy_examples import Job, cluster, decided

DOCS = Path(__file__).parents[3] / "docs"


def test_your_own_policy_in_30_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "how-to/write-a-policy.md").read_text()
    code = re.search(r"```python file=mypackage/policies.py\n(.*?)```", page, re.DOTALL)
    assert code
    assert len(code[1].splitlines()) <= 30
    module = ModuleType("mypackage.policies")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code[1], "docs/how-to/write-a-policy.md", "exec"), module.__dict__)
    kind = module.NewestFirst
    jobs = [Job("old"), Job("new", created=60.0)]
    assert decided(kind(), jobs, cluster(8)) == {"old": "-", "new": "4x4"}
    assert decided(kind(**parsed(kind, "patience=30")), jobs, cluster(8)) == {"old": "4x4", "new": "-"}


def test_every_policy_is_in_the_tables() -> None:
    page = (DOCS / "reference/policies.md").read_text()
    assert set(POLICIES) <= set(re.findall(r"^\| `([a-z0-9-]+)", page, re.MULTILINE))

"""The policy that docs/how-to/write-a-policy.md shows works as it is written there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from coach.cli.main import invoke
from coach.plugins import names, policy
from tests.core.policies.policy_examples import Job, cluster, decided

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's package, as an installer leaves it."""
    page = (DOCS / "how-to/write-a-policy.md").read_text()
    code = re.search(r"```python file=mypackage/policies.py\n(.*?)```", page, re.DOTALL)
    entry = re.search(r'```toml\n# its pyproject.toml\n\[project.entry-points."(.*?)"\]\n(.*?)\n```', page)
    assert code and entry
    assert len(code[1].splitlines()) <= 30
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage/policies.py").write_text(code[1])
    metadata = tmp_path / "mypackage-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]}\n".replace('"', ""))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mypackage.policies", raising=False)
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))


@pytest.mark.usefixtures("_installed")
def test_your_own_policy_in_30_lines() -> None:
    jobs = [Job("old"), Job("new", created=60.0)]
    assert decided(policy("newest-first"), jobs, cluster(8)) == {"old": "-", "new": "4x4"}
    assert decided(policy("newest-first:patience=30"), jobs, cluster(8)) == {"old": "4x4", "new": "-"}


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("fidelity", ["system", "trace"])
def test_your_own_policy_in_both_simulators(fidelity: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["jobs/a.yaml", "--assume", "--epochs", "5", "--nodes", "2x2", "--processes", "1", "-o", "json"]
    assert invoke(["simulate", *asked, "--policy", "drf,newest-first", "--fidelity", fidelity]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["reached"]) for row in rows] == [("drf", 1), ("newest-first", 1)]


def test_every_policy_is_in_the_tables() -> None:
    page = (DOCS / "reference/policies.md").read_text()
    missing = set(names()) - set(re.findall(r"^\| `([a-z0-9-]+)", page, re.MULTILINE))
    assert not missing, "write a row of each into a table of docs/reference/policies.md"

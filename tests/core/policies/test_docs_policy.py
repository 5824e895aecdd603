"""The policy that docs/advanced/policies.md shows works as it is written there."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from coach.cli.main import invoke
from coach.plugins import names, policy
from tests.core.policies.policy_examples import Job, cluster, decided

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's package, as an installer leaves it."""
    page = (DOCS / "advanced/policies.md").read_text()
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
    page = (DOCS / "advanced/policies.md").read_text()
    missing = set(names()) - set(re.findall(r"^\| `([a-z0-9-]+)", page, re.MULTILINE))
    assert not missing, "write a row of each into a table of docs/advanced/policies.md"


def test_from_an_empty_package_to_a_table_of_each_job_under_ones_own_policy(tmp_path: Path) -> None:
    """A researcher's first hour: a package, a trace, figures and tables, each in a process of its own."""
    page = (DOCS / "advanced/policies.md").read_text()
    code = re.search(r"```python file=(mypackage/policies.py)\n(.*?)```", page, re.DOTALL)
    entry = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert code and entry
    package, site = tmp_path / "package", tmp_path / "site"
    (package / "mypackage").mkdir(parents=True)
    (package / "mypackage/__init__.py").touch()
    (package / code[1]).write_text(code[2])
    project = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    (package / "pyproject.toml").write_text(f'{project}[project]\nname = "mypackage"\nversion = "1.0"\n{entry[1]}')
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=package, check=True)
    (wheel,) = (package / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)

    rows = "".join(f"job-{n},{n},100,4,1\n" for n in range(5))
    (tmp_path / "jobs.csv").write_text(f"job,arrival,work,cpu,gpu\n{rows}")
    asked = "simulate --trace jobs.csv --nodes 1x4x16x1 --policy fifo,newest-first --figure answer.svg"
    environment = {**os.environ, "PYTHONPATH": str(site), "COACH_HOME": str(tmp_path / "home")}
    line = [
        sys.executable,
        "-m",
        "coach.cli.main",
        *asked.split(),
        "--jobs",
        "of-jobs.csv",
        "--timeline",
        "over-time.csv",
    ]
    done = subprocess.run(line, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ends = {
        (row["policy"], row["job"]): float(row["end"])
        for row in csv.DictReader((tmp_path / "of-jobs.csv").read_text().splitlines())
    }
    assert [ends["fifo", f"job-{n}"] for n in range(5)] == [100, 200, 300, 400, 500]
    # Each that comes preempts the one before; the last has it all, and then they go on, the newest first.
    assert [ends["newest-first", f"job-{n}"] for n in range(5)] == [500, 401, 302, 203, 104]
    waiting = list(csv.DictReader((tmp_path / "over-time.csv").read_text().splitlines()))
    assert max(float(row["waiting"]) for row in waiting if row["policy"] == "fifo") == 4.0
    assert {row["gpu_used"] for row in waiting[1:4]} == {"1.0"}
    assert (tmp_path / "answer.svg").read_text().startswith("<?xml")

"""Commands that only look answer at once: they import nothing that trains, fits, draws or serves."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coach.handler.state.state_directory import StateDirectory
from coach.service.client import service_of
from coach.service.local.quick import of_journal
from tests.cli.conftest import ROOT
from tests.service.conftest import job_text
from tests.service.test_api import ENDLESS
from tests.service.test_serve import served

pytestmark = pytest.mark.standard

#: Slow to import, or of no use for looking.
BANNED = ("scipy", "matplotlib", "fastapi", "starlette", "uvicorn", "prometheus_client", "httpx")
#: Jobs are folded with it; files are checked without.
FOR_JOBS = "numpy"
#: What computes what is shown of a job, which its handler has written; and what reads options, of which there are none.
COMPUTING = "numpy coach.core.estimation.speed coach.core.lifecycle coach.core.spec.job typer pydantic"
IMPORTED = f"""
import sys
from coach.cli.main import invoke
extra, words = sys.argv[1].split(), sys.argv[2:]
code = invoke(words)
print(code, *sorted(sys.modules.keys() & {{*{BANNED}, *extra}}), file=sys.stderr)
"""


def imported(*words: str, extra: str = "") -> tuple[str, str]:
    """What a command prints; and its exit code with those of BANNED and `extra` that it imported."""
    command = [sys.executable, "-c", IMPORTED, extra, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr.strip()


@pytest.mark.parametrize("words", [(), ("--version",), ("serve", "--help"), ("ps", "-o", "json")])
def test_without_any_job_nothing_slow_is_imported(home: StateDirectory, words: tuple[str, ...]) -> None:
    assert imported(*words)[1] == "0"


def test_validate_imports_nothing_slow(home: StateDirectory) -> None:
    said, code = imported("validate", "jobs/a.yaml", "jobs/b.yaml", extra=FOR_JOBS)
    assert (said.count("\n"), code) == (2, "0")


def until_written(home: StateDirectory, name: str) -> None:
    """Return once the handler has written what commands show of a job as it is now."""
    until = time.monotonic() + 60
    while not of_journal(home.journal(1), name):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_looking_at_a_job_with_fitted_models_imports_nothing_slow(home: StateDirectory, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def net(): ...\n")
    file = tmp_path / "job.yaml"
    file.write_text(job_text("a", maxEpochs=100_000, **ENDLESS))
    with served(tmp_path, "0", "0.2"), service_of(home) as client:
        client.submit([file])
        found = client.job("a", wait=20)
        while found.job.epoch < 3:
            found = client.job("a", after=found.seq, wait=20)
        client.suspend("a", now=True)
        until_written(home, "a")
        table, code = imported("ps", extra=COMPUTING)
        assert (re.findall(r"^a +(?:Queued|Probing|Training|Waiting)", table, re.M) != [], code) == (True, "0"), table
        for words in (("why", "a"), ("show", "a")):
            why, code = imported(*words, extra=COMPUTING)
            assert code == "0", words
    assert "levels off" in why or "passes over the data" in why, "the learning curve was asked too"

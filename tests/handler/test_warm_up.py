"""Nothing is imported while a job waits: a handler that decides has imported what the first fits need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.standard

ROOT = Path(__file__).resolve().parents[2]

#: Runs a job in a Python of its own, and tells what is imported while models are fitted and while probes are chosen.
SCRIPT = """
import asyncio, json, sys, tempfile
from pathlib import Path
from coach.core.spec.job import TrainingJob
from coach.plugins import policy
from coach.handler import handler as module
from coach.handler.state.journal import Journal
from tests.core.lifecycle.faulty_cluster import spec
from tests.handler.fake_platform import FakePlatform

fit, seen = module.fit_models, {"before": "scipy.optimize" in sys.modules, "fits": 0, "imported": []}

def fitting(*arguments):
    before = set(sys.modules)
    models = fit(*arguments)
    seen["fits"] += 1
    seen["imported"] += sorted(set(sys.modules) - before)
    return models

module.fit_models = fitting

async def main(folder):
    journal = Journal.write(folder / "journal.db")
    async with module.Handler(FakePlatform(), journal, policy("coach")) as handler:
        reacted = []
        handler.observers.append(lambda event, actions: reacted.append(event))
        await handler.wait(lambda: bool(reacted))
        seen["ready"] = "scipy.optimize" in sys.modules
        decided = set(sys.modules)
        job = TrainingJob.from_json(spec(maxEpochs=12, target={"loss": 0.01}))
        handler.submit(job, (folder / "checkpoints").as_uri())
        await handler.wait(lambda: bool(handler.jobs) and all(job.ended for job in handler.jobs.values()))
        seen["epochs"] = len(handler.jobs[job.name].epochs)
        seen["later"] = sorted(name for name in set(sys.modules) - decided if name.startswith(("scipy", "numpy")))
    journal.close()

with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
print(json.dumps(seen))
"""


def test_a_handler_that_decides_has_imported_what_fits_and_decisions_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert not seen["before"], "commands that only look at jobs start without it"
    assert seen["ready"]
    assert seen["epochs"] >= 3 and seen["fits"] >= 3
    assert seen["imported"] == []
    assert seen["later"] == []

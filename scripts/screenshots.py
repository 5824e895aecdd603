"""The page with GPUs, drawn by Chromium: results/web/gpus.png.

    python -m scripts.screenshots     # half a minute; needs Chromium and a C compiler

A service on this machine with four GPUs of a stand-in, and two programs of two people on three of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from coach import Client
from tests.gpus import Gpus, gpus

FILE = Path(__file__).parents[1] / "results/web/gpus.png"
PROGRAM = """\
import time
for epoch in range(1, 1000):
    time.sleep(2)
    print(f"epoch {epoch}: eval_loss {0.2 + 2 / (epoch + 1):.3f}", flush=True)
"""
JOB = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: NAME}
spec:
  program: {command: [PYTHON, train.py]}
  target: {metric: eval_loss, value: 0.28, goal: minimize}
  budget: {amount: 20, currency: gpuh}
  workers: {min: COUNT, max: COUNT}
  resources: {worker: {cpu: 100m, memory: 64Mi, gpu: 1}}
"""
#: Epochs that the page shows.
EPOCHS = 6


def main() -> None:
    """Start the service and its jobs, draw the page, and end them."""
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        folder = Path(temporary)
        patch.setenv("COACH_HOME", str(folder / "home"))
        (folder / "train.py").write_text(PROGRAM)
        with gpus(folder, ["NVIDIA_H100"] * 4, patch) as box:
            words = [sys.executable, "-m", "coach.cli.main", "serve", "--port", "0"]
            with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as service:
                assert service.stderr is not None
                while "http://" not in service.stderr.readline():
                    assert service.poll() is None
                try:
                    _draw(folder, box)
                finally:
                    service.terminate()


def _draw(folder: Path, box: Gpus) -> None:
    with Client() as coach:
        for name, count in (("anna-bert", 2), ("ben-resnet", 1)):
            file = folder / f"{name}.yaml"
            text = JOB.replace("NAME", name).replace("COUNT", str(count)).replace("PYTHON", sys.executable)
            file.write_text(text)
            coach.submit([file])
        names = [job.name for job in coach.list_jobs().jobs]
        while len(coach.job(names[0]).epochs) < EPOCHS:
            held = [uuid for uuid in box.uuids if uuid in str([coach.job(name) for name in names])]
            box.busy, box.used = dict.fromkeys(held, 87), dict.fromkeys(held, 61_440)
            box.write()
            time.sleep(1)
        address = f"{coach.url}/ui/#login={coach.login_codes().code}/jobs/anna-bert"
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 820}, locale="en-GB", timezone_id="UTC")
            page.goto(address)
            page.get_by_text("GPUs", exact=True).first.wait_for()
            page.get_by_text("Loading").wait_for(state="detached")
            FILE.parent.mkdir(exist_ok=True)
            page.screenshot(path=FILE)
            browser.close()
        for name in names:
            coach.cancel(name)


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    main()

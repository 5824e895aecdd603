"""docs/guides/gpu-box.md: a box with four GPUs and three people, on four GPUs of a stand-in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.gpus import gpus

PAGE = ROOT / "docs/guides/gpu-box.md"
#: What a job of the page asks for, and what this machine has for each.
SIZES = ("--cpu 8 --memory 32Gi", "--cpu 0.1 --memory 128Mi")


def environment(folder: Path) -> dict[str, str]:
    """Commands of the page find this Python and this Coach."""
    (folder / "bin").mkdir()
    for name, words in (("python", ""), ("coach", "-m coach.cli.main")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    own = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COACH_HOME": str(folder / "home"), "COLUMNS": "200"}
    return os.environ | own | {"PYTHONPATH": str(ROOT)}


@contextmanager
def serving(command: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """The page's service, from when it listens until the end."""
    log = folder / "serve.log"
    with log.open("wb") as file:
        words = [*command.split(), "--port", "0"]
        service = subprocess.Popen(words, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        while "http://127.0.0.1" not in log.read_text():
            assert service.poll() is None, log.read_text()
        yield
    finally:
        service.terminate()
        service.wait()


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_three_people_share_four_gpus_and_each_pays_in_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = blocks(PAGE)
    (script,) = (one for one in page if one.words == "file=train.py")
    (tmp_path / "train.py").write_text(script.text, encoding="utf-8")
    look, alone, serve, budgets, together, after = (one.text for one in page if one.language == "bash")
    with gpus(tmp_path, ["NVIDIA_H100"] * 4, monkeypatch) as box:
        env = environment(tmp_path)

        def run(text: str) -> str:
            done = subprocess.run(
                ["bash", "-ec", text.replace(*SIZES)],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        seen = run(look)
        assert all(uuid in seen for uuid in box.uuids) and seen.count("free") == 4
        said = run(alone)
        assert "first: Succeeded" in said and said.count("NVIDIA H100") >= 2 and " gpuh" in said
        with serving(serve.strip(), tmp_path, env):
            run(budgets)
            said = run(together)
            assert all(f"{job}: Succeeded" in said for job in ("anna-1", "ben-1", "cleo-1"))
            assert "coreh" not in run(after)
            accounts = json.loads(run("coach budget list -o json"))
    paid = {one["name"]: one["spent"] for one in accounts}
    assert {one["currency"] for one in accounts} == {"gpuh"} and all(paid[name] > 0 for name in ("anna", "ben", "cleo"))
    assert paid["lab"] == pytest.approx(paid["anna"] + paid["ben"] + paid["cleo"])
    for job, count in (("first", 2), ("anna-1", 2), ("ben-1", 2), ("cleo-1", 1)):
        log = (tmp_path / "home/jobs" / job / f"logs/{job}-worker-0.log").read_text()
        seen_by_it = re.findall(r"GPU-[0-9a-f-]+", log.partition("trains on ")[2].splitlines()[0])
        assert len(set(seen_by_it)) == count and set(seen_by_it) <= set(box.uuids)

"""A short run of the coverage-guided fuzzer, where it is installed: `make fuzz` is the long one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: make fuzz")
def test_no_file_near_the_examples_breaks_the_parser(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for file in (ROOT / "jobs").glob("*.yaml"):
        shutil.copy(file, corpus)
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobfiles.coverage_guided", str(corpus), "-runs=2000", "-max_len=4096"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]

"""Runs the PyTorch tests, and what a change of a group costs, with the newest torch and transformers of PyPI.

    python scripts/newest_torch.py      # make test-torch2; some 6 GB; results/pytorch/torch2.md

By hand: what is newest changes from day to day, so nothing is pinned and the page says the versions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-torch2"
PYTHON = FOLDER / "bin" / "python"
WRITTEN = ROOT / "results" / "pytorch" / "torch2.md"
VERSIONS = """
import json, platform, numpy, torch, transformers
print(json.dumps({"PyTorch": torch.__version__, "transformers": transformers.__version__, "NumPy": numpy.__version__,
                  "Python": platform.python_version()}))
"""
ROUNDS = 5
PACKAGES = ("torch", "transformers[torch]", "lightning", "keras")


def installed() -> dict[str, str]:
    """The versions; installs them where they are not there."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    found = subprocess.run([str(PYTHON), "-c", VERSIONS], check=True, capture_output=True, text=True)
    versions: dict[str, str] = json.loads(found.stdout)
    return versions


def main() -> int:
    """Install, test, measure, write."""
    versions = installed()
    environment = {
        **os.environ,
        "COACH_PYTORCH_PYTHON": str(PYTHON),
        "COACH_REQUIRE_ALL": "1",
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, "-m", "pytest", "-q", "tests", "-m", "pytorch and not full"]
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    sys.stdout.write(tests.stdout)
    outcome = re.sub(r",? ?\d+ deselected| in [\d.]+s.*", "", tests.stdout.splitlines()[-1].strip("= "))
    changes = [sys.executable, "-m", "benchmarks.pytorch.changes", str(ROUNDS), str(WRITTEN)]
    subprocess.run(changes, cwd=ROOT, env=environment, check=True)
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    page = [
        "# PyPI's newest PyTorch",
        "",
        f"`make test-torch2` on {datetime.now(UTC):%Y-%m-%d}: {said}. The tests that need PyTorch: {outcome}.",
        "",
        WRITTEN.read_text().replace("# PyTorch: what", "## What", 1),
    ]
    WRITTEN.write_text("\n".join(page).rstrip("\n") + "\n")
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())

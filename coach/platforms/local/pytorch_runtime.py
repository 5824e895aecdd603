"""The Python that runs PyTorch functions: the user's own, which has torch. Coach installs nothing into it.

python -m coach.platforms.local.pytorch_runtime      # finds a torch, and says which
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from coach.core.errors import CoachError, PermanentError

#: The Python to use, in place of the first one that has torch.
VARIABLE = "COACH_PYTORCH_PYTHON"
MINIMUM = (1, 13)
REMEDY = (
    f"pip install torch, or apt install python3-torch libopenblas0-pthread, or set {VARIABLE} to a Python that has it"
)
#: Seconds for an import of torch on a busy machine.
IMPORT_SECONDS = 180.0

_PROBE = """
import json, sys
import numpy, torch
torch.from_numpy(numpy.zeros(1))
print(json.dumps([torch.__version__, numpy.__version__, ".".join(map(str, sys.version_info[:3]))]))
"""


class Torch(NamedTuple):
    """A Python that has a usable torch, and the versions of torch, NumPy and Python."""

    python: Path
    torch: str
    numpy: str
    version: str


def candidates() -> Iterator[Path]:
    """Pythons that may have torch, without repeats: the chosen one alone, else those at hand."""
    if chosen := os.environ.get(VARIABLE):
        yield Path(chosen)
        return
    active = (os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    places = [Path(folder) / "bin/python" for folder in active if folder]
    places += [Path(found) for name in ("python3", "python") if (found := shutil.which(name))]
    for folder in map(Path, ("/usr/local/bin", "/usr/bin")):
        places += sorted(folder.glob("python3.[0-9]*"), reverse=True)
    seen = set()
    for place in places:
        # Not resolved: an environment's python is a link, and what it is called decides its packages.
        if place.exists() and "-" not in place.name and place not in seen:
            seen.add(place)
            yield place


def ask(python: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python` with the user's environment, but its own packages. Raises OSError, subprocess.TimeoutExpired."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | environment
    command = [str(python), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False, env=own)


@cache
def probe(python: Path) -> Torch | str:
    """What `python` has, or why its torch cannot be used."""
    try:
        done = ask(python, "-c", _PROBE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    torch, numpy, version = json.loads(done.stdout.splitlines()[-1])
    if tuple(int(part) for part in torch.split(".")[:2]) < MINIMUM:
        return f"torch {torch}; {MINIMUM[0]}.{MINIMUM[1]} or later is needed"
    return Torch(python, torch, numpy, version)


def torch() -> Torch:
    """The first Python with a usable torch. Raises PermanentError with what was tried."""
    tried = []
    for python in candidates():
        found = probe(python)
        if isinstance(found, Torch):
            return found
        tried.append(f"{python}: {found}")
    # One that has torch, but not a usable one, explains most.
    tried.sort(key=lambda line: "No module named" in line)
    raise PermanentError(f"no Python with PyTorch ({'; '.join(tried[:3])}); {REMEDY}")


def main() -> int:
    """Find a torch; 4 where there is none."""
    try:
        found = torch()
    except CoachError as error:
        sys.stderr.write(f"setup: {error}\n")
        return error.exit_code
    sys.stdout.write(f"PyTorch {found.torch}, NumPy {found.numpy}, Python {found.version}: {found.python}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which optimizers a framework has, as the Python says that runs its functions: asked once for each version of it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coach.core.errors import CoachError
from coach.core.spec.training import Framework
from coach.platforms.local import install_runtime, pytorch_runtime
from coach.platforms.local.environment import Functions

_MODULE = "training.model.catalogue"


@functools.cache
def catalogue(framework: Framework) -> dict[str, Any] | None:
    """What functions/training/model/catalogue.py describes; None where there is no Python that can say."""
    try:
        folder = Functions.folder_only()
        found = (_cached(python, framework, folder) for python in _pythons(framework))
        return next((answer for answer in found if answer is not None), None)
    except CoachError:
        return None


def _pythons(framework: Framework) -> Iterator[Path]:
    if framework is Framework.PYTORCH:
        yield from pytorch_runtime.candidates()
    else:
        yield Functions.find(framework).python


def _cached(python: Path, framework: Framework, folder: Path) -> dict[str, Any] | None:
    """The answer of this Python, if it has the framework; asked again when another version was installed."""
    sources = [folder / f"training/{framework.value}/optimizers.py", folder / "training/model/catalogue.py"]
    key = hashlib.sha256(os.fsencode(python.absolute()))
    for source in sources:
        key.update(source.read_bytes())
    place = install_runtime.cache_folder() / "optimizers" / f"{key.hexdigest()[:24]}.json"
    try:
        kept: dict[str, Any] = json.loads(place.read_text())
        if Path(kept["file"]).stat().st_mtime_ns == kept["changed"]:
            return kept
    except (OSError, ValueError, KeyError):
        pass
    answer = _ask(python, framework, folder)
    if answer is not None:
        half = place.with_suffix(f".{os.getpid()}")
        try:
            answer["changed"] = Path(answer["file"]).stat().st_mtime_ns
            place.parent.mkdir(parents=True, exist_ok=True)
            half.write_text(json.dumps(answer))
            half.replace(place)
        except OSError:
            pass  # it is asked again next time
    return answer


def _ask(python: Path, framework: Framework, folder: Path) -> dict[str, Any] | None:
    own = {"COACH_FRAMEWORK": framework.value, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = pytorch_runtime.ask(python, "-m", _MODULE, **own)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    return answer

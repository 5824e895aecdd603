"""Functions of a framework that imports nothing: they answer, and train nothing."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from coach.platforms.local.environment import Functions
from coach.platforms.local.runtime import FunctionProcess, Runtime


def quick_runtime(folder: Path) -> Runtime:
    """A runtime whose template is there at once, not open yet."""
    functions = folder / "functions"
    if not functions.exists():
        shutil.copytree(Functions.folder_only(), functions, ignore=shutil.ignore_patterns("__pycache__"))
        (functions / "training/mxnet/__init__.py").write_text("")
        (functions / "training/mxnet/backend.py").write_text("def warm_up():\n    pass\n")
    return Runtime(Functions(functions, Path(sys.executable)))


async def launch(runtime: Runtime, folder: Path, address: str, name: str = "f", **given: Any) -> FunctionProcess:
    """A worker with its log in `folder`."""
    place = {"cpus": None, "network": None, **given}
    return await runtime.launch("worker", name, address, log_path=folder / f"{name}.log", **place)


def ask(address: str, **body: Any) -> dict[str, Any]:
    """A function's answer, of its health where nothing else is asked."""
    data = json.dumps(body or {"op": "health"}).encode()
    with urllib.request.urlopen(f"http://{address}/", data, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found

"""Functions of a framework that imports nothing: they answer, and train nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import sys
import tempfile
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


def ask(function: FunctionProcess | str, **body: Any) -> dict[str, Any]:
    """A function's answer, of its health where nothing else is asked. It is found by its address, too."""
    if isinstance(function, str):
        (path,) = Path(tempfile.gettempdir()).glob(f"coach-*/{function}.sock")
    else:
        path = Path(function.socket)
    data = json.dumps(body or {"op": "health"})
    with contextlib.closing(http.client.HTTPConnection("function", timeout=60)) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("POST", "/", data, {"Content-Type": "application/json"})
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    return found

"""Functions of a framework that imports nothing: they answer, and train nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from coach.platforms.local.environment import Functions
from coach.platforms.local.runtime import FunctionProcess, Runtime
from tests.chaos.processes import command, descendants


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


def listening(address: str) -> Path:
    """The socket of a function that came from this process. Others' functions may have its address, in other folders,
    and what they leave behind.
    """
    keepers = (command(pid) for pid in descendants(os.getpid()))
    folders = {Path(found[1]) for line in keepers if (found := re.search(r"--remove (\S+)/template", line))}
    (path,) = (path for folder in folders if (path := folder / f"{address}.sock").exists())
    return path


def ask(function: FunctionProcess | str, **body: Any) -> dict[str, Any]:
    """A function's answer, of its health where nothing else is asked. One of this process is found by its address."""
    path = listening(function) if isinstance(function, str) else Path(function.socket)
    data = json.dumps(body or {"op": "health"})
    with contextlib.closing(http.client.HTTPConnection("function", timeout=60)) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("POST", "/", data, {"Content-Type": "application/json"})
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    return found

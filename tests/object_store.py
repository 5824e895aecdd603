"""A real S3 server on this machine: versitygw, which `make object-store` builds of its Go module."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.packaging.api_server import PROGRAM as _CONTROL_PLANE
from tests.required import missing

PROGRAM = _CONTROL_PLANE.parents[2] / ".cache/bin/versitygw"
BUCKET = "bucket"


class ObjectStore:
    """The server, with one bucket; `bucket` is the folder with its objects."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        if not PROGRAM.exists():
            missing("no .cache/bin/versitygw: run make object-store, which needs Go")
        self.bucket = folder / "objects" / BUCKET
        self.bucket.mkdir(parents=True)
        (folder / "metadata").mkdir()
        with socket.socket() as one:
            one.bind((address, 0))
            self._port = one.getsockname()[1]
        self.endpoint = f"http://{address}:{self._port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "coach",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
        }
        self._folder = folder
        self.command = [
            *(str(PROGRAM), "--port", f"{address}:{self._port}", "--region", "us-east-1"),
            *("--access", "coach", "--secret", "not-a-secret"),
            *("posix", "--sidecar", str(folder / "metadata"), str(folder / "objects")),
        ]
        self._address = (address, self._port)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with (self._folder / "log").open("a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            assert self.process.poll() is None and time.monotonic() < deadline, (self._folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=1):
                return
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it; what it has stored stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        """What it has logged: a line for each request."""
        return (self._folder / "log").read_text()

    def objects(self) -> list[str]:
        """The keys of all objects."""
        found = [path.relative_to(self.bucket) for path in self.bucket.rglob("*") if path.is_file()]
        return sorted(str(path) for path in found if path.parts[0] != ".sgwtmp")

    def parts(self) -> int:
        """The parts of uploads that were begun, and neither completed nor aborted."""
        return sum(path.is_file() for path in (self.bucket / ".sgwtmp").rglob("*"))


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Started, and with its address and credentials in the environment."""
    store = ObjectStore(folder)
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ |= store.environment
    try:
        store.start()
        yield store
    finally:
        store.kill()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})

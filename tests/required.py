"""What a test needs of the machine: without it the test is skipped, in CI (COACH_REQUIRE_ALL=1) it fails."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

REQUIRED = os.environ.get("COACH_REQUIRE_ALL") == "1"


def missing(what: str) -> NoReturn:
    """Skip the test that asks, or fail it where everything is required."""
    if REQUIRED:
        pytest.fail(what)
    pytest.skip(what)


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own at `place`."""
    place.mkdir()
    if os.geteuid() != 0:
        missing("mounting a small file system needs root")
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "coach-test", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        missing("no file system may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)

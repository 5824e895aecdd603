"""Making the functions' own Python where Coach was installed as a wheel: once, on first use.

A checkout has it from `make setup`. A wheel carries the functions and the list of what they need, with hashes
(`coach/bundled`); the environment made of that list is in the cache, under the list's hash.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from coach.core.errors import PermanentError

#: MXNet's last release runs with no later one, and the list is locked for this one.
VERSION = "3.11"

#: What the functions need of the machine and of the list.
_CHECK = "import ctypes; ctypes.CDLL('libgomp.so.1'); import mxnet"

LIBGOMP = "MXNet needs libgomp: apt install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora)"

#: Words of installers that cannot reach what they install from.
_UNREACHABLE = (
    "connection",
    "dns error",
    "name resolution",
    "timed out",
    "error sending request",
    "failed to fetch",
    "network was disabled",
)


def cache_folder() -> Path:
    """COACH_CACHE, by default ~/.cache/coach: what can be made or fetched again."""
    return Path(os.environ.get("COACH_CACHE") or Path.home() / ".cache" / "coach")


def place(requirements: Path) -> Path:
    """The folder of the environment that is made of a list."""
    return cache_folder() / f"functions-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"


def python_of(folder: Path) -> Path | None:
    """The Python of an environment that was made to its end."""
    return folder / "bin" / "python" if (folder / ".ready").exists() else None


def prepare(requirements: Path, say: Callable[[str], None]) -> Path:
    """Make the environment of a list where it is not there yet; its Python. Several at once make it once.

    Raises PermanentError with what is missing: Python 3.11, a network, a library, disk space.
    """
    folder = place(requirements)
    with locked(folder):
        python = python_of(folder)
        if python is None:
            say(f"first use: installing MXNet for the functions into {folder} (some 400 MB, once)")
            python = _make(folder, requirements)
    return python


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time makes `folder` of the cache. Raises PermanentError where nothing can be written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("a+")
    except OSError as error:
        raise PermanentError(
            f"{folder.parent}: cannot be written ({error.strerror}); set COACH_CACHE to a folder that can"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, requirements: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)  # what was given up half way
    python = folder / "bin" / "python"
    for command in _commands(folder, python, requirements):
        run(command)
    run([str(python), "-c", _CHECK])
    (folder / ".ready").touch()
    return python


def _commands(folder: Path, python: Path, requirements: Path) -> Iterator[list[str]]:
    """How the environment is made: by uv where the machine has it, else by what comes with Python."""
    uv = shutil.which("uv")
    if uv:
        yield [uv, "venv", "--quiet", "--python", VERSION, str(folder)]
        yield [uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(requirements)]
        return
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    yield [_find_python(), "-m", "venv", str(folder)]
    yield [str(python), *pip, "--requirement", str(requirements)]


def _find_python() -> str:
    """A Python of that version: this one, or one on the PATH that runs."""
    if sys.version_info[:2] == tuple(map(int, VERSION.split("."))):
        return sys.executable
    found = shutil.which(f"python{VERSION}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        raise PermanentError(
            f"MXNet needs Python {VERSION}, this is {sys.version.split()[0]}, and no python{VERSION} is on the PATH: "
            f"install python{VERSION} with its venv, or uv, which brings one; or set COACH_FUNCTIONS_PYTHON to a "
            "Python that has mxnet"
        )
    return found


def run(command: Sequence[str]) -> None:
    """Run one command. Raises PermanentError with what it said last, and what to do."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=own
        )
    except OSError as error:
        raise PermanentError(f"{command[0]}: cannot be run: {error.strerror}") from error
    if done.returncode == 0:
        return
    lines = [line.strip(" ╰─▶│├×·") for line in done.stdout.splitlines() if line.strip()]
    raise PermanentError(_what_is_wrong(lines or [f"exit code {done.returncode}"]))


def _what_is_wrong(lines: Sequence[str]) -> str:
    """One line of all that an installer said."""
    text = " ".join(lines)
    last = next((line for line in reversed(lines) if line.lower().startswith("error")), lines[-1])
    said = f"the functions' Python could not be made: {last[:300]}"
    lower = text.lower()
    if "libgomp" in lower:
        return LIBGOMP
    if "ensurepip" in lower:
        return f"{said}; install python{VERSION}-venv (Debian, Ubuntu), or uv"
    if "no space left" in lower:
        return f"{said}; free some disk space, or set COACH_CACHE to another folder"
    if any(words in lower for words in _UNREACHABLE):
        return (
            f"{said}; the first use needs the package index that Coach was installed from: try again with a network, "
            "or set COACH_FUNCTIONS_PYTHON to a Python that has mxnet"
        )
    return f"{said}; or set COACH_FUNCTIONS_PYTHON to a Python that has mxnet"

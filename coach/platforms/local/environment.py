"""Where the functions and their Python are, and the process that all local functions are forked from."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from coach.core.errors import PermanentError

#: Seconds for the first import of MXNet (some two, alone on the machine). One that fails says so at once, so this is
#: for machines with twenty others at work on each core.
IMPORT_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Functions:
    """The folder that has scheduler/, server/, worker/ and training/, and the Python that runs them."""

    folder: Path
    python: Path

    @classmethod
    def find(cls) -> Functions:
        """By COACH_FUNCTIONS and COACH_FUNCTIONS_PYTHON, else those of this checkout.

        Raises PermanentError that names what is missing and how to get it.
        """
        root = Path(__file__).resolve().parents[3]
        folder = cls.folder_only()
        python = Path(os.environ.get("COACH_FUNCTIONS_PYTHON") or root / ".venv-functions/bin/python")
        if not python.exists():
            raise PermanentError(
                f"no Python for the functions at {python}: run `make setup` in a checkout of Coach, "
                "or set COACH_FUNCTIONS_PYTHON to a Python that has mxnet and nuclio-sdk"
            )
        return cls(folder, python)

    @staticmethod
    def folder_only() -> Path:
        """The folder, for those who run nothing. Raises PermanentError where it has no functions."""
        root = Path(__file__).resolve().parents[3]
        folder = Path(os.environ.get("COACH_FUNCTIONS") or root / "functions")
        if not (folder / "worker" / "handler.py").is_file():
            raise PermanentError(f"no functions in {folder}: set COACH_FUNCTIONS to the folder that has them")
        return folder

    @property
    def env(self) -> dict[str, str]:
        """Environment of every function process. Data sets are parsed once for all, into COACH_CACHE."""
        cache = Path(os.environ.get("COACH_CACHE") or Path.home() / ".cache" / "coach")
        return {
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COACH_DATA_CACHE": str(cache / "data"),
        }

    async def start_template(self, socket: Path) -> Template:
        """Start the process that imports MXNet once for all. Raises PermanentError with what it said."""
        socket.unlink(missing_ok=True)  # of one that died
        process = await asyncio.create_subprocess_exec(
            str(self.python),
            "-m",
            "training.zygote",
            "--listen",
            str(socket),
            "--parent",
            str(os.getpid()),
            cwd=self.folder,
            env={**os.environ, **self.env, "PYTHONPATH": str(self.folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        template = Template(socket, process)
        try:
            async with asyncio.timeout(IMPORT_SECONDS):
                while not socket.exists():
                    if process.returncode is not None:
                        break
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        if socket.exists():
            return template
        await template.close()
        said = (await process.stdout.read()).decode(errors="replace").strip() if process.stdout else ""
        last = said.splitlines()[-1] if said else f"nothing said within {IMPORT_SECONDS:.0f} s"
        raise PermanentError(
            f"the functions' Python ({self.python}) cannot import MXNet: {last}; try `make setup`"
        )


class Template:
    """The running template process; the kernel ends it with us."""

    def __init__(self, socket: Path, process: asyncio.subprocess.Process) -> None:
        self.socket = socket
        self._process = process

    @property
    def ended(self) -> bool:
        """Whether it has died."""
        return self._process.returncode is not None

    async def close(self) -> None:
        """End it."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

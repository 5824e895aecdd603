"""Where the functions and a framework's Python are, and the process that all its local functions are forked from."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coach.core.errors import PermanentError
from coach.core.spec.training import Framework
from coach.platforms.local import install_runtime, pytorch_runtime

#: Seconds for the first import of a framework (some two, alone on the machine). One that fails says so at once, so this
#: is for machines with twenty others at work on each core.
IMPORT_SECONDS = 180.0


#: What a wheel carries in addition to coach's own modules, and where a checkout has the same.
_BUNDLED = Path(__file__).resolve().parents[2] / "bundled"
_CHECKOUT = Path(__file__).resolve().parents[3]
_REQUIREMENTS = _BUNDLED / "functions.txt"


#: What the frameworks are called in messages.
NAMES = {Framework.MXNET: "MXNet", Framework.PYTORCH: "PyTorch"}


class NotPreparedError(PermanentError):
    """The functions' Python is made on first use, and was not used yet."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The folder that has scheduler/, server/, worker/ and training/, and the Python that runs them for a framework."""

    folder: Path
    python: Path
    framework: Framework = Framework.MXNET

    @classmethod
    def find(cls, framework: Framework = Framework.MXNET) -> Functions:
        """By COACH_FUNCTIONS and the framework's variable, else those of the wheel, or of this checkout.

        Raises PermanentError that names what is missing and how to get it; NotPreparedError where only the Python is.
        """
        folder = cls.folder_only()
        if framework is Framework.PYTORCH:
            return cls(folder, pytorch_runtime.torch().python, framework)
        chosen = os.environ.get("COACH_FUNCTIONS_PYTHON")
        python = Path(chosen) if chosen else _CHECKOUT / ".venv-functions/bin/python"
        if not chosen and _BUNDLED.is_dir():
            made = install_runtime.place(_REQUIREMENTS)
            python = install_runtime.python_of(made) or made
            if python == made:
                raise NotPreparedError(f"no Python for the functions at {made} yet: the first `coach run` makes it")
        if not python.exists():
            raise PermanentError(
                f"no Python for the functions at {python}: run `make setup` in a checkout of Coach, "
                "or set COACH_FUNCTIONS_PYTHON to a Python that has mxnet"
            )
        return cls(folder, python)

    @classmethod
    def ready(cls, say: Callable[[str], None], framework: Framework = Framework.MXNET) -> Functions:
        """As `find`; what is made on first use is made, and `say` gets a line about it."""
        if framework is Framework.MXNET and _BUNDLED.is_dir() and not os.environ.get("COACH_FUNCTIONS_PYTHON"):
            install_runtime.prepare(_REQUIREMENTS, say)
        return cls.find(framework)

    @staticmethod
    def folder_only() -> Path:
        """The folder, for those who run nothing. Raises PermanentError where it has no functions."""
        own = _BUNDLED if _BUNDLED.is_dir() else _CHECKOUT
        folder = Path(os.environ.get("COACH_FUNCTIONS") or own / "functions")
        if not (folder / "training" / "nuclio.py").is_file():
            raise PermanentError(f"no functions in {folder}: set COACH_FUNCTIONS to the folder that has them")
        return folder

    @property
    def remedy(self) -> str:
        """What makes their Python anew."""
        if self.framework is Framework.PYTORCH:
            return pytorch_runtime.REMEDY
        made = _BUNDLED.is_dir() and self.python.is_relative_to(install_runtime.cache_folder())
        return f"again after: rm -r {self.python.parents[1]}" if made else "`make setup` in a checkout of Coach"

    @property
    def env(self) -> dict[str, str]:
        """Environment of every function process. Data sets are parsed once for all, into COACH_CACHE."""
        return {
            "COACH_FRAMEWORK": self.framework.value,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COACH_DATA_CACHE": str(install_runtime.cache_folder() / "data"),
        }

    async def start_template(self, socket: Path) -> Template:
        """Start the process that imports the framework once for all. Raises PermanentError with what it said.

        A keeper runs it (functions/training/keeper.py): all that functions start ends with this process, however that
        ends.
        """
        socket.unlink(missing_ok=True)  # of one that died
        ours, theirs = os.pipe()
        keeper = ("-m", "training.keeper", "--lifeline", str(ours), "--remove", str(socket), "--")
        process = await asyncio.create_subprocess_exec(
            str(self.python),
            *keeper,
            str(self.python),
            "-m",
            "training.serving.template",
            str(socket),
            cwd=self.folder,
            env={**os.environ, **self.env, "PYTHONPATH": str(self.folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(ours,),
        )
        os.close(ours)
        template = Template(socket, process, theirs)
        try:
            async with asyncio.timeout(IMPORT_SECONDS):
                while not socket.exists():
                    if process.returncode is not None:
                        break
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        except BaseException:  # the caller is gone, and no other code would end the process
            await template.close()
            raise
        if socket.exists():
            return template
        await template.close()
        said = (await process.stdout.read()).decode(errors="replace").strip() if process.stdout else ""
        last = said.splitlines()[-1] if said else f"nothing said within {IMPORT_SECONDS:.0f} s"
        step = install_runtime.LIBGOMP if "libgomp" in last else f"try {self.remedy}"
        raise PermanentError(
            f"the functions' Python ({self.python}) cannot import {NAMES[self.framework]}: {last}; {step}"
        )


class Template:
    """The running template process, and its keeper, which ends it and all that it has started with us."""

    def __init__(self, socket: Path, keeper: asyncio.subprocess.Process, lifeline: int) -> None:
        self.socket = socket
        self._keeper = keeper
        self._lifeline: int | None = lifeline

    @property
    def ended(self) -> bool:
        """Whether it has died. Processes that it has forked may run still."""
        return self._keeper.returncode is not None or not self.socket.exists()

    async def close(self) -> None:
        """End it, and all that it has started."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        await self._keeper.wait()

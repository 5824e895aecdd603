"""Where the functions and a framework's Python are, and what processes of it need."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coach.core.errors import PermanentError
from coach.core.spec.training import Framework
from coach.platforms.local import install_runtime, pytorch_runtime

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
            **os.environ,
            "COACH_FRAMEWORK": self.framework.value,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COACH_DATA_CACHE": str(install_runtime.cache_folder() / "data"),
            "PYTHONPATH": str(self.folder),
        }

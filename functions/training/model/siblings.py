"""Files next to a model file: Python finds those that the job names, as they were when their hashes were taken.

`{"parts.py": content}` is the module `parts`, `{"parts/__init__.py": ..., "parts/loss.py": ...}` a package.
No file that the job does not name is found, so a job trains with what its hashes say.
"""

import importlib.abc
import importlib.machinery
import linecache
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from training.errors import TrainingError


class Siblings(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and runs the modules that `files` are, content by relative path; messages say they are in `folder`."""

    def __init__(self, folder: str, files: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._files = files

    @property
    def places(self) -> list[str]:
        """What messages call the files."""
        return [shown(self._folder, name) for name in self._files]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        del path, target
        place = fullname.replace(".", "/")
        for name, is_package in ((f"{place}/__init__.py", True), (f"{place}.py", False)):
            if name in self._files:
                spec = importlib.machinery.ModuleSpec(
                    fullname, self, origin=shown(self._folder, name), is_package=is_package
                )
                spec.has_location = True
                return spec
        if any(name.startswith(f"{place}/") for name in self._files):
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)  # without __init__.py
        return None

    def exec_module(self, module: ModuleType) -> None:
        """See importlib.abc.Loader."""
        origin: Any = module.__spec__ and module.__spec__.origin
        run(self._files[origin.removeprefix(shown(self._folder, ""))], origin, module)

    def install(self) -> None:
        """Be asked before all other finders. Raises TrainingError ModelInvalid where a name is in use already."""
        for top in sorted({name.partition("/")[0].removesuffix(".py") for name in self._files}):
            if top in sys.modules:
                place = getattr(sys.modules[top], "__file__", None) or "Python itself"
                message = (
                    f"{shown(self._folder, top)}: `import {top}` means {place} in a worker, which has loaded it "
                    "already; give the file next to the model file another name"
                )
                raise TrainingError("ModelInvalid", message)
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Undo `install`, and forget the modules."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        tops = {name.partition("/")[0].removesuffix(".py") for name in self._files}
        for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
            del sys.modules[name]


def shown(folder: str, name: str) -> str:
    """What messages and tracebacks call a file of the folder."""
    return f"{folder}/{name}" if folder else name


def run(source: bytes, name: str, module: ModuleType) -> None:
    """Run a file's content as a module; tracebacks show its lines."""
    text = source.decode(errors="replace")
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), module.__dict__)  # noqa: S102 - running it is what it is for

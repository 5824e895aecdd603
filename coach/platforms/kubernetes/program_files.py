"""The files of a program that a user's machine has, in a ConfigMap, whose keys name no folders."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from coach.core.errors import UserError

#: Files that are sent along with those that the command names: sources, and what configures them.
SUFFIXES = frozenset({".py", ".sh", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".txt", ".r", ".jl", ".lua"})
#: Folders that are never looked into, with those whose names begin with a dot, and Python's environments.
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv", "build", "dist"})
#: Files, and bytes of all, that one ConfigMap carries; names of a folder that are looked at.
MAX_FILES, LARGEST, MAX_NAMES = 200, 900_000, 10_000
#: What replaces a slash in a key.
_SLASH = "-.-"
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def sources(folder: Path, command: Sequence[str]) -> dict[str, bytes]:
    """What a command needs of the folder it runs in, by relative path: nothing where it names no file there.

    Links that lead out of the folder are left out (`left_out`): who wrote it may have pointed them at anything. Raises
    UserError where the command names one, and where that is more than a ConfigMap carries.
    """
    named = [name for name in _named(command) if (folder / name).is_file()]
    if not named:
        return {}
    for name in named:
        if not _stays(folder, name):
            raise UserError(f"{name}: a link that leads out of {folder}, to {(folder / name).resolve()}; copy it there")
    found: dict[str, bytes] = {}
    size = 0
    for name in dict.fromkeys([*named, *(one for one in _sources(folder) if _stays(folder, one))]):
        if _KEY.fullmatch(name.replace("/", _SLASH)) is None or _SLASH in name:
            if name in named:
                raise UserError(f"{name}: a name that a ConfigMap cannot carry; letters, digits, - _ and . are right")
            continue
        try:
            size += (folder / name).stat().st_size
            if size <= LARGEST and len(found) < MAX_FILES:
                found[name] = (folder / name).read_bytes()
                continue
        except OSError as error:
            raise UserError(f"{folder / name}: cannot be read ({error.strerror})") from error
        raise UserError(
            f"{folder}: its sources are more than the {MAX_FILES} files and {LARGEST:,} bytes that are sent along; "
            "put the program into the image, and say where it is there: program.directory in a job file"
        )
    return found


def keys(names: Iterable[str]) -> dict[str, str]:
    """The ConfigMap's keys of files, by their relative paths."""
    return {name: name.replace("/", _SLASH) for name in names}


def names(keys: Iterable[str]) -> dict[str, str]:
    """The inverse: of each key, the relative path of its file; those that lead out of the folder are left out."""
    found = {key: key.replace(_SLASH, "/") for key in keys}
    return {name: key for key, name in found.items() if ".." not in PurePosixPath(name).parts}


def left_out(folder: Path) -> list[str]:
    """Source files of a folder that are not sent along: links that lead out of it."""
    return [name for name in _sources(folder) if not _stays(folder, name)]


def words(files: Mapping[str, bytes], left: Sequence[str] = ()) -> str:
    """Which they are, in a line, and which were `left` out."""
    said = f"{len(files)} file{'' if len(files) == 1 else 's'}, {sum(map(len, files.values())):,} bytes: {_few(files)}"
    return said + (f"; left out, links that lead out of the folder: {_few(left)}" if left else "")


def _few(names: Collection[str]) -> str:
    return ", ".join(itertools.islice(names, 6)) + (", ..." if len(names) > 6 else "")


def _stays(folder: Path, name: str) -> bool:
    """Whether a file really is in the folder."""
    return (folder / name).resolve().is_relative_to(folder.resolve())


def _named(command: Sequence[str]) -> Iterator[str]:
    """Relative paths that words of a command may be, those of a module behind `-m` among them."""
    for before, word in itertools.pairwise(["", *command]):
        module = word.replace(".", "/")
        for name in (f"{module}.py", f"{module}/__main__.py") if before == "-m" else (word,):
            path = PurePosixPath(os.path.normpath(name)) if name else None
            if path is not None and not path.is_absolute() and ".." not in path.parts:
                yield str(path)


def _sources(folder: Path) -> Iterator[str]:
    """The source files of a folder and of those in it."""
    seen = 0
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _LEFT_OUT and not Path(at, name, "pyvenv.cfg").exists()
        )
        seen += len(files) + len(folders)
        if seen > MAX_NAMES:
            raise UserError(f"{folder}: more than {MAX_NAMES:,} files; start from the program's own folder")
        for name in sorted(files):
            path = Path(at, name)
            if not name.startswith(".") and path.suffix.lower() in SUFFIXES and path.is_file():
                yield path.relative_to(folder).as_posix()

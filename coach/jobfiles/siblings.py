"""The Python files next to a model file that it imports, found without running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coach.jobfiles.framework import imported


def found(model: Path, most: int) -> dict[str, Path]:
    """By their path from the model file's folder: what it imports, what those import, and whole packages.

    At most one more than `most`. Raises OSError for one that cannot be read.
    """
    folder = model.parent
    files: dict[str, Path] = {}
    left = [(model, "")]
    while left and len(files) <= most:
        path, package = left.pop()
        for name in sorted(imported(path.read_bytes(), package)):
            for place in _places(folder, name.split(".")):
                key = place.relative_to(folder).as_posix()
                if key not in files and place != model and len(files) <= most:
                    files[key] = place
                    left.append((place, ".".join(place.relative_to(folder).parent.parts)))
    return dict(sorted(files.items()))


def _places(folder: Path, names: list[str]) -> Iterator[Path]:
    """The files that `import a.b` runs, as far as they are in `folder`: of a package, all of its files."""
    at = folder
    for name in names:
        if not (name.isascii() and name.isidentifier()):
            return
        package, module = at / name, at / f"{name}.py"
        if (package / "__init__.py").is_file():
            yield from sorted(_package(package))
            return
        if module.is_file():
            yield module
            return
        if not package.is_dir():
            return
        at = package


def _package(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*.py"):
        if all(part.isascii() and part.removesuffix(".py").isidentifier() for part in path.relative_to(folder).parts):
            yield path

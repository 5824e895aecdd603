"""A model file and the files next to it in a ConfigMap, whose keys name no folders: `a/b.py` is `a.b.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob

#: Bytes that a ConfigMap may have, less what its names take.
LARGEST = 1_000_000


def key(name: str) -> str:
    """The key of a file next to the model file."""
    return name.replace("/", ".")


def path_of(key: str) -> Path | None:
    """The inverse, relative to the model file's folder; None for a key that is no module's."""
    parts = key.removesuffix(".py").split(".")
    return Path(*parts).with_suffix(".py") if key.endswith(".py") and all(map(str.isidentifier, parts)) else None


def contents(job: TrainingJob, model: Path) -> dict[Path, bytes]:
    """The model file, and the files next to it that it imports, by their paths.

    Raises UserError where they are too large for a ConfigMap, or cannot be read.
    """
    for name, path in siblings(job, model).items():
        if not path.resolve().is_relative_to(model.parent.resolve()):
            raise UserError(f"{path}: a link that leads out of {model.parent}, to {path.resolve()}; copy {name} there")
    try:
        files = {path: path.read_bytes() for path in (model, *siblings(job, model).values())}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error
    size = sum(map(len, files.values()))
    if size > LARGEST:
        raise UserError(
            f"{model} and the files next to it that it imports have {size:,} bytes, more than the {LARGEST:,} that a "
            "ConfigMap can carry; put their folder into the image of the functions, or on Coach's volume, and name the "
            "model file there in spec.model.file"
        )
    return files


def siblings(job: TrainingJob, model: Path) -> Mapping[str, Path]:
    """The files next to the model file that the job names, by their relative paths."""
    files = job.spec.model.files if job.spec.model is not None else None
    return {name: model.parent / name for name in files or {}}

"""Which checkpoints of a job go: kept are the best whole epoch's, the last two, and every so many by its job file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coach.core.errors import UserError
from coach.core.jobs.job import Job


def _files(folder: str) -> tuple[Any, str]:
    """The file system of a URI and the path in it. Raises UserError where no package knows it."""
    if folder.startswith(("s3://", "gs://")):
        try:
            from obstore.fsspec import FsspecStore
        except ImportError as error:
            raise UserError(f"{folder}: an object store needs the package obstore: pip install obstore") from error
        make: Any = FsspecStore
        scheme, _, path = folder.partition("://")
        return make(scheme, client_options={"allow_http": True}), path  # an endpoint without TLS is meant
    import fsspec

    found: tuple[Any, str] = fsspec.core.url_to_fs(folder)
    return found


def obsolete(job: Job) -> list[str]:
    """URIs from the second-last epoch's checkpoint to the last's, those of failed attempts between them too.

    And of the epoch that was the best before the last one. Without the best. The functions delete them when they have
    written the next one: where they are, the handler need not reach.
    """
    if len(job.epochs) < 2:
        return []
    written = [epoch.report.weights for epoch in job.epochs[-2:]]
    (name, first), (_, end) = (_parts(uri.rpartition("/")[2]) for uri in written)
    found = [f"{job.progress.checkpoints}/{name}.{attempt}.ckpt" for attempt in range(first, end)]
    best, before = job.best, job.best_of(job.epochs[:-1])
    if before is not None and before is not best and before.report.weights not in written:
        found.append(before.report.weights)
    keep = kept(job)
    unfinished = [f"{job.progress.checkpoints}/.{name}.{attempt}.ckpt.part" for attempt in range(first + 1, end)]
    return [uri for uri in found if uri not in keep] + unfinished


def kept(job: Job) -> set[str]:
    """URIs of the checkpoints that stay though later ones are there: of the best epoch and of every so many."""
    every, best = job.spec.checkpoint.keep_every, job.best
    found = {epoch.report.weights for epoch in job.full_epochs if every and epoch.ordinal % every == 0}
    return found if best is None else found | {best.report.weights}


@dataclass(frozen=True, slots=True)
class Surplus:
    """Checkpoints of an ended job that can be deleted. `bytes`: their size; `keeps`: the epochs whose stay."""

    job: str
    files: tuple[str, ...]
    bytes: int
    keeps: tuple[int, ...]


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """An object store's errors are none of Python's, and go on with details of its requests in further lines."""
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


@_in_one_line()
def surplus(job: Job, *, everything: bool) -> Surplus:
    """Its checkpoints but for the best epoch's and the last; or `everything`. Raises OSError, UserError."""
    keep = [] if everything else [*job.epochs[-1:], *([job.best] if job.best else [])]
    stay = {epoch.report.weights.rpartition("/")[2]: epoch.ordinal for epoch in keep}
    names = {_parts(epoch.report.weights.rpartition("/")[2])[0] for epoch in job.epochs}
    files, path = _files(job.progress.checkpoints)
    found, size, there = list[str](), 0, set[int]()
    for entry in files.ls(path, detail=True) if files.exists(path) else ():
        name = str(entry["name"]).rpartition("/")[2]
        owner, attempt = _parts(name.removeprefix(".").removesuffix(".part") if _begun(name) else name)
        if owner not in names or attempt < 0:
            continue
        if name in stay:
            there.add(stay[name])
        else:
            found.append(str(entry["name"]))
            size += int(entry["size"] or 0)
    return Surplus(job.name, tuple(sorted(found)), size, tuple(sorted(there)))


@_in_one_line()
def delete(job: Job, surplus: Surplus) -> None:
    """Delete them. Raises OSError, UserError."""
    files, _ = _files(job.progress.checkpoints)
    for file in surplus.files:
        files.rm_file(file)


def _begun(name: str) -> bool:
    """Whether it is a file that is renamed when it is complete (`functions/training/storage.py`)."""
    return name.startswith(".") and name.endswith(".part")


def _parts(name: str) -> tuple[str, int]:
    """Job and attempt of a checkpoint's name; attempt -1 if it is not a checkpoint's."""
    job, _, attempt = name.removesuffix(".ckpt").rpartition(".")
    return (job, int(attempt)) if name.endswith(".ckpt") and attempt.isdecimal() else (name, -1)

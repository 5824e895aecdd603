"""Deletes a job's old checkpoints: the last one and its predecessor are kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import fsspec

log = logging.getLogger(__name__)


def sweep(folder: str, *keep: str | None) -> None:
    """Delete a job's older checkpoints in `folder` (a URI). What cannot be deleted stays.

    Checkpoints are called `<job>.<attempt>.ckpt`; the one of the last attempt in `keep` names the job, and earlier
    attempts are older. Other jobs' files stay, as do checkpoints of later epochs. Unfinished files of killed workers
    are deleted too.
    """
    names = {uri.rpartition("/")[2] for uri in keep if uri}
    job, last = max(map(_parts, names), key=lambda parts: parts[1])
    try:
        files, path = fsspec.core.url_to_fs(folder)
        for file in files.ls(path, detail=False):
            name = str(file).rpartition("/")[2]
            owner, attempt = _parts(name.removeprefix(".").removesuffix(".part") if _begun(name) else name)
            if owner == job and 0 <= attempt < last and name not in names:
                files.rm_file(file)
    except Exception as error:  # each file system has errors of its own
        log.warning("old checkpoints in %s stay: %s", folder, error)


def obsolete(folder: str, written: Sequence[str]) -> list[str]:
    """URIs from the third-last checkpoint in `written` to the second-last, those of failed attempts between them too.

    Functions delete them where the handler does not see the folder: each epoch the next ones.
    """
    if len(written) < 3:
        return []
    (job, first), (_, end) = (_parts(uri.rpartition("/")[2]) for uri in written[-3:-1])
    return [f"{folder}/{job}.{attempt}.ckpt" for attempt in range(first, end)]


def _begun(name: str) -> bool:
    """Whether it is a file that is renamed when it is complete (`functions/training/storage.py`)."""
    return name.startswith(".") and name.endswith(".part")


def _parts(name: str) -> tuple[str, int]:
    """Job and attempt of a checkpoint's name; attempt -1 if it is not a checkpoint's."""
    job, _, attempt = name.removesuffix(".ckpt").rpartition(".")
    return (job, int(attempt)) if name.endswith(".ckpt") and attempt.isdecimal() else (name, -1)

"""Deletes a job's old checkpoints: the last one, its predecessor and the best epoch's are kept."""

from __future__ import annotations

import logging

import fsspec

from coach.core.jobs.job import Job

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


def obsolete(job: Job) -> list[str]:
    """URIs from the third-last epoch's checkpoint to the second-last's, those of failed attempts between them too.

    And of the epoch that was the best before the last one. Without the best. Functions delete them where the handler
    does not see the folder: each epoch the next ones.
    """
    if len(job.epochs) < 3:
        return []
    written = [epoch.report.weights for epoch in job.epochs[-3:]]
    (name, first), (_, end) = (_parts(uri.rpartition("/")[2]) for uri in written[:2])
    found = [f"{job.checkpoints}/{name}.{attempt}.ckpt" for attempt in range(first, end)]
    best, before = job.best, job.best_of(job.epochs[:-1])
    if before is not None and before is not best and before.report.weights not in written:
        found.append(before.report.weights)
    return [uri for uri in found if best is None or uri != best.report.weights]


def _begun(name: str) -> bool:
    """Whether it is a file that is renamed when it is complete (`functions/training/storage.py`)."""
    return name.startswith(".") and name.endswith(".part")


def _parts(name: str) -> tuple[str, int]:
    """Job and attempt of a checkpoint's name; attempt -1 if it is not a checkpoint's."""
    job, _, attempt = name.removesuffix(".ckpt").rpartition(".")
    return (job, int(attempt)) if name.endswith(".ckpt") and attempt.isdecimal() else (name, -1)

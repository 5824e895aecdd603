"""Whether the model file of a job, or a file next to it, was changed since the job was submitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coach.core.jobs.job import Job
from coach.core.spec.training import MAX_FILES, Model
from coach.handler.resume_rules import NotNowError
from coach.jobfiles import siblings
from coach.jobfiles.load import local_path, outside, sha256_of


def to_accept(job: Job, *, accept: bool, inside: Sequence[Path] | None = None) -> Model | None:
    """The model of a job that does not run, as its files are now; None where they are as when it was submitted.

    `inside`: folders that files have to be in. Raises NotNowError, with what to do, where they were changed and that
    is not to be accepted.
    """
    was = job.spec.model
    now = None if was is None else _now(was, inside)
    if was is None or now is None or (now.sha256, now.files or {}) == (was.sha256, was.files or {}):
        return None
    if not accept:
        files = sorted(
            name
            for name in {**(was.files or {}), **(now.files or {})}
            if (was.files or {}).get(name) != (now.files or {}).get(name)
        )
        changed = [f"{was.file} has SHA-256 {now.sha256}, not {was.sha256}"] if now.sha256 != was.sha256 else []
        changed += [f"{', '.join(files)} next to it"] if files else []
        raise NotNowError(
            f"{job.name}: its model was changed since it was submitted ({'; '.join(changed)}); to go on with the files "
            f"as they are now: coach resume {job.name} --accept-model"
        )
    return now


def _now(model: Model, inside: Sequence[Path] | None) -> Model | None:
    """None where the files are not on this machine, or may not be read: the functions say what is wrong."""
    path = local_path(model.file)
    if path is None or model.sha256 is None:
        return None
    try:
        paths = {"": path, **siblings.found(path, MAX_FILES)}
        if any(outside(each, inside) for each in paths.values()):
            return None
        hashes = {name: sha256_of(each) for name, each in paths.items()}
    except (OSError, RuntimeError):
        return None
    sha256 = hashes.pop("")
    return model.model_copy(update={"sha256": sha256, "files": hashes or None})

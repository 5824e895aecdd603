"""Job files from texts."""

from __future__ import annotations

from pathlib import Path

from coach.core.spec.job import TrainingJob
from coach.jobfiles.changes import NO_CHANGES
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import _read
from coach.jobfiles.optimizers import Knows, nothing_known


def read_jobs(data: bytes | str, name: str = "job.yaml", knows: Knows = nothing_known) -> list[TrainingJob]:
    """The jobs in the text of a job file, paths as they are written. Raises JobFileError, mistakes in `name`."""
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    # No local model file is looked at: none is inside of no folder.
    found, problems = _read(encoded, Path(name), (), (), knows, NO_CHANGES)
    if problems:
        raise JobFileError(problems)
    return [one.job for one in found]

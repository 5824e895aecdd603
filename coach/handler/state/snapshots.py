"""A job's state as JSON, so that a journal need not be folded from its first record again.

A snapshot has a job's epochs, except the last, packed and stored separately (`coach.handler.state.epoch_archive`). It
is a cache: one that this version of Coach cannot read is ignored, and the job is folded from all its records.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from coach.core.cluster import Instance
from coach.core.jobs.actions import RunEpoch
from coach.core.jobs.decision import DecisionStep
from coach.core.jobs.epoch import Epoch, EpochReport
from coach.core.jobs.fitted_models import FittedCurve, FittedSpeed
from coach.core.jobs.job import Held, Job
from coach.core.money import PriceBook
from coach.core.spec.job import TrainingJob
from coach.handler.state.epoch_archive import EpochArchive

#: Fields stored in another form: as plain JSON, rebuilt on first use, or without duplicates. Epochs: those that are
#: not packed.
_OTHERWISE: dict[str, Any] = {
    "pods": tuple[Held, ...],
    "epochs": list[Epoch],
    "job_file": dict[str, Any],
    "surface": dict[str, Any] | None,
    "curve": tuple[str, float] | None,
    "full_epoch_curves": tuple[tuple[str, float], ...],
}


#: A job's first snapshot is made after so many epochs.
FIRST_EPOCHS = 3


def due(job: Job) -> bool:
    """Whether it is time for a job's next snapshot: it has half as many epochs again as the last one.

    So all its snapshots together take no more bytes than its records, and few records are left to fold.
    """
    packed = job.epochs.count_packed if isinstance(job.epochs, EpochArchive) else 0
    return len(job.epochs) - packed > max(packed // 2, FIRST_EPOCHS)


def dump(job: Job) -> tuple[str, int, bytes]:
    """The job, how many of its epochs are packed, and the packed epochs. Packs them in the job itself too."""
    epochs = job.epochs if isinstance(job.epochs, EpochArchive) else EpochArchive(job.epochs)
    job.epochs = epochs
    epochs.pack()
    values = {name: getattr(job, name) for name in _types()}
    values["job_file"] = job.job_file.to_json()
    values["pods"] = tuple(job.pods.values())
    values["epochs"] = epochs.last
    values["surface"] = job.surface and job.surface.data
    values["curve"] = job.curve and (job.curve.text, job.curve.epochs_trained)
    values["full_epoch_curves"] = tuple((curve.text, curve.epochs_trained) for curve in job.full_epoch_curves)
    body = _adapter().dump_json(_mirror()(**values)).decode()
    return f"{body}\n{_sum(body, epochs.packed)}", epochs.count_packed, epochs.packed


def load(body: str, count: int, packed: bytes) -> Job:
    """The job that `dump` wrote. Raises ValueError if it is none."""
    body, _, known = body.rpartition("\n")
    if known != _sum(body, packed):
        raise ValueError("damaged, or of an earlier release")
    mirror = _adapter().validate_json(body)
    values = {name: getattr(mirror, name) for name in _types()}
    values["job_file"] = TrainingJob.from_json(mirror.job_file)
    values["pods"] = {held.pod.id: held for held in mirror.pods}
    values["epochs"] = EpochArchive(mirror.epochs, packed, count)
    values["surface"] = None if mirror.surface is None else FittedSpeed(mirror.surface)
    values["curve"] = None if mirror.curve is None else FittedCurve(*mirror.curve)
    values["full_epoch_curves"] = curves = tuple(FittedCurve(*curve) for curve in mirror.full_epoch_curves)
    if curves and curves[-1] == values["curve"]:
        values["curve"] = curves[-1]  # the same object, as before
    return Job(**values)


def _sum(body: str, packed: bytes) -> str:
    return f"{zlib.crc32(packed, zlib.crc32(body.encode())):08x}"


@cache
def shape() -> str:
    """Names and types of everything in a snapshot: another version of Coach may have others."""
    inside = [get_type_hints(kind) for kind in (DecisionStep, Epoch, EpochReport, Held, Instance, PriceBook, RunEpoch)]
    return hashlib.sha256(repr([_types(), *inside]).encode()).hexdigest()[:16]


@cache
def _types() -> dict[str, Any]:
    hints = get_type_hints(Job)
    # The others follow from these.
    return {field.name: hints[field.name] for field in dataclasses.fields(Job) if field.init} | _OTHERWISE


@cache
def _mirror() -> Any:
    return dataclasses.make_dataclass("Snapshot", list(_types().items()), slots=True)


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_mirror())

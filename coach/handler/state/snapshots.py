"""A job's state as JSON, so that a journal need not be folded from its first record again.

A snapshot has a job's epochs, except the last, packed and stored separately (`coach.handler.state.epoch_archive`). It
is a cache: one that this version of Coach cannot read is ignored, and the job is folded from all its records.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from functools import cache
from operator import attrgetter
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from coach.core.cluster import Instance
from coach.core.jobs.actions import RunEpoch
from coach.core.jobs.decision import DecisionStep
from coach.core.jobs.epoch import Epoch, EpochReport
from coach.core.jobs.fitted_models import FittedCurve, FittedSpeed
from coach.core.jobs.job import Job
from coach.core.jobs.parts import Held
from coach.core.money import PriceBook
from coach.core.spec.job import TrainingJob
from coach.handler.state.epoch_archive import EpochArchive

#: Fields stored in another form: as plain JSON, rebuilt on first use, or without duplicates. Epochs: those that are
#: not packed.
_OTHERWISE: dict[str, Any] = {
    "gang.pods": tuple[Held, ...],
    "epochs": list[Epoch],
    "job_file": dict[str, Any],
    "models.surface": dict[str, Any] | None,
    "models.curve": tuple[str, float] | None,
    "models.full_epoch_curves": tuple[tuple[str, float], ...],
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
    models = job.models
    values = {path: attrgetter(path)(job) for path in _types()} | {
        "job_file": job.job_file.to_json(),
        "epochs": epochs.last,
        "gang.pods": tuple(job.gang.pods.values()),
        "models.surface": models.surface and models.surface.data,
        "models.curve": models.curve and (models.curve.text, models.curve.epochs_trained),
        "models.full_epoch_curves": tuple((curve.text, curve.epochs_trained) for curve in models.full_epoch_curves),
    }
    body = _adapter().dump_json(values).decode()
    return f"{body}\n{_sum(body, epochs.packed)}", epochs.count_packed, epochs.packed


def load(body: str, count: int, packed: bytes) -> Job:
    """The job that `dump` wrote. Raises ValueError if it is none."""
    body, _, known = body.rpartition("\n")
    if known != _sum(body, packed):
        raise ValueError("damaged, or of an earlier release")
    values = _adapter().validate_json(body)
    values["job_file"] = TrainingJob.from_json(values["job_file"])
    values["epochs"] = EpochArchive(values["epochs"], packed, count)
    values["gang.pods"] = {held.pod.id: held for held in values["gang.pods"]}
    surface, curve = values["models.surface"], values["models.curve"]
    values["models.surface"] = None if surface is None else FittedSpeed(surface)
    curves = tuple(FittedCurve(*one) for one in values["models.full_epoch_curves"])
    fitted = None if curve is None else FittedCurve(*curve)
    values["models.full_epoch_curves"] = curves
    values["models.curve"] = curves[-1] if curves and curves[-1] == fitted else fitted  # the same object, as before
    parts = {part: kind(**{name: values.pop(f"{part}.{name}") for name in _stored(kind)}) for part, kind in _parts()}
    return Job(**values, **parts)


def _sum(body: str, packed: bytes) -> str:
    return f"{zlib.crc32(packed, zlib.crc32(body.encode())):08x}"


@cache
def shape() -> str:
    """Names and types of everything in a snapshot: another version of Coach may have others."""
    inside = [get_type_hints(kind) for kind in (DecisionStep, Epoch, EpochReport, Held, Instance, PriceBook, RunEpoch)]
    return hashlib.sha256(repr([_types(), *inside]).encode()).hexdigest()[:16]


def _stored(kind: Any) -> dict[str, Any]:
    """Names and types of the fields of a dataclass that do not follow from others."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


@cache
def _parts() -> tuple[tuple[str, Any], ...]:
    """The parts of a job, and their types."""
    return tuple((name, kind) for name, kind in _stored(Job).items() if dataclasses.is_dataclass(kind))


@cache
def _types() -> dict[str, Any]:
    """Types of all that is stored, by paths: `epochs`, `gang.pods`."""
    types = _stored(Job)
    for part, kind in _parts():
        del types[part]
        types |= {f"{part}.{name}": one for name, one in _stored(kind).items()}
    return types | _OTHERWISE


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(TypedDict("Snapshot", _types()))  # type: ignore[operator]

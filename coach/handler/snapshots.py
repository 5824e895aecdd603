"""A job at rest as two JSON texts, so that a journal need not be folded from its first record again.

The second has its epochs, which are most of it: they are packed, and unpacked where somebody looks at them. A snapshot
is a shortcut and never the truth: one that this version of Coach cannot read is passed over, and the job is the fold of
its records as ever.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from coach.core.jobs.events import EpochReport
from coach.core.jobs.fits import Curve, Surface
from coach.core.jobs.job import Epoch, Job
from coach.core.jobs.spec import TrainingJob
from coach.handler.later import Later

#: What a job at rest does not have, and what is kept apart.
_ABSENT = ("pods", "running", "epochs")
#: Fields that are kept as plain JSON, and made again where somebody looks at them.
_PLAIN: dict[str, Any] = {
    "spec": dict[str, Any],
    "surface": dict[str, Any] | None,
    "curve": tuple[dict[str, Any], float] | None,
    "real_curves": tuple[tuple[dict[str, Any], float], ...],
}

_EPOCHS: TypeAdapter[list[Epoch]] = TypeAdapter(list[Epoch])


def freeze(job: Job) -> tuple[str, int, bytes]:
    """A job at rest (nothing runs, and it holds nothing): itself, how many epochs it has, and these."""
    values = {name: getattr(job, name) for name in _types()}
    values["spec"] = job.spec.to_json()
    values["surface"] = job.surface and job.surface.data
    values["curve"] = job.curve and (job.curve.data, job.curve.passes)
    values["real_curves"] = tuple((curve.data, curve.passes) for curve in job.real_curves)
    packed = zlib.compress(_EPOCHS.dump_json(list(job.epochs)), 1)
    return _adapter().dump_json(_mirror()(**values)).decode(), len(job.epochs), packed


def thaw(body: str, count: int, packed: bytes) -> Job:
    """The job that `freeze` wrote. Raises ValueError for what is none."""
    mirror = _adapter().validate_json(body)
    values = {name: getattr(mirror, name) for name in _types()}
    values["spec"] = TrainingJob.from_json(mirror.spec)
    values["surface"] = None if mirror.surface is None else Surface(mirror.surface)
    values["curve"] = None if mirror.curve is None else Curve(*mirror.curve)
    values["real_curves"] = curves = tuple(Curve(*curve) for curve in mirror.real_curves)
    if curves and curves[-1] == values["curve"]:
        values["curve"] = curves[-1]  # one and the same, as it was
    return Job(**values, epochs=Later(count, lambda: _EPOCHS.validate_json(zlib.decompress(packed))))


@cache
def shape() -> str:
    """Names and types of everything in a snapshot: another version of Coach may have others."""
    epochs = [get_type_hints(kind) for kind in (Epoch, EpochReport)]
    return hashlib.sha256(repr([_types(), *epochs]).encode()).hexdigest()[:16]


@cache
def _types() -> dict[str, Any]:
    return {name: kind for name, kind in (get_type_hints(Job) | _PLAIN).items() if name not in _ABSENT}


@cache
def _mirror() -> Any:
    return dataclasses.make_dataclass("Snapshot", list(_types().items()), slots=True)


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_mirror())

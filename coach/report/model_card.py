"""The card of a trained model: what it was trained on, how, to what, and for how much."""

from __future__ import annotations

import contextlib
import os
import stat
from itertools import groupby
from typing import Any, BinaryIO

from coach import __version__
from coach.core.errors import UserError
from coach.core.jobs.epoch import Epoch, EpochKind
from coach.core.jobs.job import Job
from coach.core.money import to_amount
from coach.jobfiles.load import local_path


def chosen_epoch(job: Job, asked: str) -> Epoch:
    """The epoch that `asked` names: best, last or a number. Raises UserError."""
    if not job.epochs:
        raise UserError(f"{job.name} has no checkpoint yet: the first full epoch writes one; coach why {job.name}")
    if asked == "last":
        return job.epochs[-1]
    if asked == "best":
        return job.best or job.epochs[-1]
    number = int(asked) if asked.isdecimal() and len(asked) < 10 else 0
    if not 1 <= number <= job.full_epoch_count:
        raise UserError(f"--epoch {asked!r}: must be best, last, or a number from 1 to {job.full_epoch_count}")
    return job.full_epochs[number - 1]


def checkpoint_file(epoch: Epoch) -> BinaryIO | None:
    """The epoch's checkpoint, opened; None where this machine does not have it.

    A link is none, nor anything else that is no file: a job's functions may have put it there, for who reads more.
    """
    path = local_path(epoch.report.weights)
    with contextlib.suppress(OSError):
        file = None if path is None else open(path, "rb", opener=_itself)  # noqa: SIM115 - the caller closes it
        if file is None or stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    return None


def _itself(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def model_card(job: Job, epoch: Epoch) -> dict[str, Any]:
    """The card of the model of `epoch`. Money in the job's currency, times in seconds."""
    spec, model, of = job.spec, job.spec.model, job.spec.data
    assert model is not None and of is not None
    until = [one for one in job.epochs if one.number <= epoch.number]
    digests = [one.report.data_sha256 for one in until if one.report.data_sha256]
    data = {"sha256": digests[-1]} if digests else {}
    whole = [one for one in until if one.kind is EpochKind.FULL]
    allocations = [
        {"workers": at.workers, "servers": at.servers, "epochs": len(list(some))}
        for at, some in groupby(whole, key=lambda one: one.allocation)
    ]
    return {
        "job": job.name,
        "framework": spec.framework.value,
        "model": model.model_dump(mode="json", by_alias=True, exclude_none=True),
        "data": of.model_dump(mode="json", by_alias=True, exclude_none=True) | data,
        "batchSize": spec.batch_size,
        "optimizer": None
        if spec.optimizer is None
        else spec.optimizer.model_dump(mode="json", by_alias=True, exclude_none=True),
        "seed": spec.seed,
        "epoch": epoch.ordinal,
        "passesOverTheData": sum(
            one.report.samples / (one.report.pass_samples or one.report.data_size) for one in until
        ),
        "loss": epoch.report.loss,
        "accuracy": epoch.report.accuracy,
        "cost": to_amount(sum(one.cost for one in until)),
        "currency": spec.price_book.currency,
        "trainSeconds": sum(one.report.train_seconds for one in until),
        "allocations": allocations,
        "software": [*dict.fromkeys(one.report.software for one in until if one.report.software)],
        "coach": __version__,
    }

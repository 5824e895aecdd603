"""What a model that is handed over was trained on, how, and for how much: the JSON beside its file."""

from __future__ import annotations

import hashlib
from itertools import groupby
from pathlib import Path
from typing import Any

from coach import __version__
from coach.core.jobs.epoch import Epoch
from coach.core.jobs.job import Job
from coach.core.money import to_amount


def model_card(job: Job, epoch: Epoch, file: Path) -> dict[str, Any]:
    """The card of the model of `epoch`, which is in `file`. Money in the job's currency, times in seconds."""
    spec = job.spec
    until = [one for one in job.epochs if one.number <= epoch.number]
    allocations = [
        {"workers": at.workers, "servers": at.servers, "epochs": len(list(some))}
        for at, some in groupby(until, key=lambda one: one.allocation)
    ]
    return {
        "job": job.name,
        "framework": spec.framework.value,
        "file": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "model": spec.model.model_dump(mode="json", by_alias=True, exclude_none=True),
        "data": spec.data.model_dump(mode="json", by_alias=True, exclude_none=True),
        "batchSize": spec.batch_size,
        "optimizer": None
        if spec.optimizer is None
        else spec.optimizer.model_dump(mode="json", by_alias=True, exclude_none=True),
        "seed": spec.seed,
        "epoch": epoch.number,
        "passesOverTheData": epoch.epochs_trained,
        "loss": epoch.report.loss,
        "accuracy": epoch.report.accuracy,
        "cost": to_amount(sum(one.cost for one in until)),
        "currency": spec.price_book.currency,
        "trainSeconds": sum(one.report.train_seconds for one in until),
        "allocations": allocations,
        "coach": __version__,
    }

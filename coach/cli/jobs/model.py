"""`coach model`."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, print_json

if TYPE_CHECKING:
    from coach.core.jobs.epoch import Epoch
    from coach.core.jobs.job import Job

#: How each framework's users read a checkpoint.
_READ = {
    "pytorch": 'net.load_state_dict(torch.load("{file}", weights_only=True)["model_state_dict"])',
    "mxnet": 'numpy.load("{file}")["weights/NAME"]; names are those of net.collect_params()',
}
_SUFFIXES = {"pytorch": ".pt", "mxnet": ".npz"}


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `coach ps` shows it.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output-file", metavar="FILE", help="Where to; by default JOB.pt or JOB.npz here."
        ),
    ] = None,
    epoch: Annotated[
        str, typer.Option("--epoch", metavar="best|last|N", help="Of which epoch; those that are kept.")
    ] = "best",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    output: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TABLE,
) -> None:
    """Copy a job's trained model, its best epoch's, to a file.

    The best is that of the test split; its checkpoint is kept, and the last two.
    FILE.json has what the model was trained on, how, and its cost.
    Of a PyTorch job the file has the net's state_dict, of an MXNet job its arrays.

    \b
    Examples:
      coach model lenet-digits
      coach model lenet-digits -o digits.npz
      coach model lenet-digits --epoch last
    """
    from coach.cli.job_lookup import find, past_jobs
    from coach.core.errors import UserError
    from coach.handler.state.state_directory import StateDirectory
    from coach.jobfiles.load import local_path

    past = find(past_jobs(StateDirectory.default()), job)
    framework = past.job.job_file.spec.framework.value
    chosen = _epoch(past.job, epoch)
    source = local_path(chosen.report.weights)
    if source is None or not source.is_file():
        raise UserError(
            f"the checkpoint of epoch {chosen.number} of {past.job.name} is at {chosen.report.weights}, which this "
            "machine does not have; the best epoch's is kept, and the last two: --epoch best, --epoch last"
        )
    to = file or Path(f"{past.job.name}{_SUFFIXES[framework]}")
    if to.is_dir():
        to /= f"{past.job.name}{_SUFFIXES[framework]}"
    if to.exists() and not force:
        raise UserError(f"{to} is there already; --force overwrites it, -o FILE names another")
    half = to.with_name(f".{to.name}.half")
    try:
        shutil.copyfile(source, half)
        half.replace(to)
        card = _card(past.job, chosen, to)
        to.with_name(f"{to.name}.json").write_text(json.dumps(card, indent=2) + "\n")
    except OSError as error:
        half.unlink(missing_ok=True)
        raise UserError(f"{to}: cannot be written ({error.strerror})") from error
    if output is Format.JSON:
        print_json(
            {
                "job": past.job.name,
                "framework": framework,
                "file": str(to),
                "card": f"{to}.json",
                "epoch": chosen.number,
                "loss": chosen.report.loss,
                "accuracy": chosen.report.accuracy,
            }
        )
        return
    said = f", loss {chosen.report.loss:.4f}" if chosen.report.loss is not None else ""
    typer.echo(f"{to}: {past.job.name} after epoch {chosen.number} of {len(past.job.epochs)}{said}")
    typer.echo(f"  {_READ[framework].format(file=to)}")


def _epoch(job: Job, asked: str) -> Epoch:
    """The epoch that `asked` names. Raises UserError."""
    from coach.core.errors import UserError

    if not job.epochs:
        raise UserError(
            f"{job.name} has no checkpoint yet: the first full epoch writes one; coach why {job.name}"
        )
    if asked == "last":
        return job.epochs[-1]
    if asked == "best":
        return job.best or job.epochs[-1]
    number = int(asked) if asked.isdecimal() and len(asked) < 10 else 0
    if not 1 <= number <= len(job.epochs):
        raise UserError(f"--epoch {asked!r}: must be best, last, or a number from 1 to {len(job.epochs)}")
    return job.epochs[number - 1]


def _card(job: Job, epoch: Epoch, file: Path) -> dict[str, Any]:
    """The card of the model of `epoch`, which is in `file`. Money in the job's currency, times in seconds."""
    from coach import __version__
    from coach.core.money import to_amount

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

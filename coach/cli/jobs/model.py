"""`coach model`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from coach.cli.display.output import Format, print_json

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
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    output: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TABLE,
) -> None:
    """Copy a job's trained model, its last checkpoint, to a file.

    Of a PyTorch job the file has the net's state_dict, of an MXNet job its arrays.

    \b
    Examples:
      coach model lenet-digits
      coach model lenet-digits -o digits.npz
    """
    from coach.cli.job_lookup import find, past_jobs
    from coach.core.errors import UserError
    from coach.handler.state.state_directory import StateDirectory
    from coach.jobfiles.load import local_path

    past = find(past_jobs(StateDirectory.default()), job)
    weights, framework = past.job.weights, past.job.job_file.spec.framework.value
    if weights is None:
        raise UserError(
            f"{past.job.name} has no checkpoint yet: the first full epoch writes one; coach why {job}"
        )
    source = local_path(weights)
    if source is None or not source.is_file():
        raise UserError(
            f"the checkpoint of {past.job.name} is at {weights}, which this machine does not have"
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
    except OSError as error:
        half.unlink(missing_ok=True)
        raise UserError(f"{to}: cannot be written ({error.strerror})") from error
    last = past.job.full_epochs[-1].report if past.job.full_epochs else None
    if output is Format.JSON:
        print_json(
            {
                "job": past.job.name,
                "framework": framework,
                "file": str(to),
                "epoch": len(past.job.full_epochs),
                "loss": last.loss if last else None,
                "accuracy": last.accuracy if last else None,
            }
        )
        return
    said = f", loss {last.loss:.4f}" if last and last.loss is not None else ""
    typer.echo(f"{to}: {past.job.name} after {len(past.job.epochs)} epochs{said}")
    typer.echo(f"  {_READ[framework].format(file=to)}")

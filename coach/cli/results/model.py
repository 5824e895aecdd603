"""`coach model`."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, print_json
from coach.cli.options import JobName
from coach.core.errors import UserError

if TYPE_CHECKING:
    from coach.core.spec.job import TrainingJob

#: How the users of each kind of file read it.
_READ = {
    ".pt": 'net.load_state_dict(torch.load("{file}", weights_only=True)["model_state_dict"])',
    ".npz": 'numpy.load("{file}")["weights/NAME"]; names are those of net.collect_params()',
    ".params": 'net.load_parameters("{file}")',
}
_SYMBOL = 'without the model file: gluon.SymbolBlock.imports("{0}-symbol.json", ["data"], "{0}-0000.params")'


def command(
    job: JobName,
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-file",
            metavar="FILE",
            help="Where to; by default JOB.pt or JOB.params here, JOB.npz where the model file is not here.",
        ),
    ] = None,
    epoch: Annotated[
        str, typer.Option("--epoch", metavar="best|last|N", help="Of which epoch; those that are kept.")
    ] = "best",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    output: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TABLE,
) -> None:
    """Hand over a job's trained model, its best epoch's.

    The best is that of the test split. FILE.json, its card, has what the model was trained on, how, and its cost.
    A PyTorch job's file has the net's state_dict. An MXNet job's is what net.load_parameters reads, with symbol and
    arrays for SymbolBlock.imports where the net is a HybridBlock; a FILE.npz has its arrays, without MXNet.

    \b
    Examples:
      coach model lenet-digits
      coach model lenet-digits -o digits.npz
      coach model lenet-digits --epoch last
      coach --context kind-dev model lenet-digits
    """
    from coach.cli.operations import operations
    from coach.core.spec.job import TrainingJob

    if str(file) == "-":
        raise UserError("-o -: names no file; -o NAME.npz takes the arrays of MXNet, -o NAME.pt those of PyTorch")
    with operations() as coach:
        card = coach.model_card(job, epoch)
        found = coach.job(job)
        spec = TrainingJob.from_json(found.spec)
        torch = card["framework"] == "pytorch"
        ending = ".pt" if torch else ".params" if _model_is_here(spec) else ".npz"
        to = file or Path(f"{job}{ending}")
        to = to / f"{job}{ending}" if to.is_dir() else to
        if to.exists() and not force:
            raise UserError(f"{to} is there already; --force overwrites it, -o FILE names another")
        try:
            with tempfile.TemporaryDirectory(prefix=".coach-model-", dir=to.parent) as half:
                source = Path(half, "checkpoint")
                with source.open("wb") as content:
                    coach.save_model(job, content, epoch)
                files = _written(spec, source, Path(half) / to.name)
                for each in files:
                    (Path(half) / each).replace(to.with_name(each))
            with to.open("rb") as content:
                sha256 = hashlib.file_digest(content, "sha256").hexdigest()
            said = {"job": job, "framework": card["framework"], "file": to.name, "sha256": sha256} | card
            to.with_name(f"{to.name}.json").write_text(json.dumps(said, indent=2) + "\n")
        except OSError as error:
            raise UserError(f"{to}: cannot be written ({error.strerror})") from error
    if output is Format.JSON:
        print_json(
            {
                "job": job,
                "framework": card["framework"],
                "file": str(to),
                "files": [str(to.with_name(each)) for each in files],
                "card": f"{to}.json",
                "epoch": card["epoch"],
                "loss": card["loss"],
                "accuracy": card["accuracy"],
            }
        )
        return
    loss = f", loss {card['loss']:.4f}" if card["loss"] is not None else ""
    typer.echo(f"{to}: {job} after epoch {card['epoch']} of {found.job.epoch}{loss}")
    typer.echo(f"  {_READ['.pt' if torch else to.suffix if to.suffix in _READ else '.params'].format(file=to)}")
    if len(files) > 1:
        typer.echo(f"  {_SYMBOL.format(to.with_suffix(''))}")


def _model_is_here(spec: TrainingJob) -> bool:
    from coach.jobfiles.load import local_path

    path = local_path(spec.spec.model.file) if spec.spec.model else None
    return path is not None and path.is_file()


def _written(spec: TrainingJob, source: Path, to: Path) -> list[str]:
    """Write the model; the names of the files, `to` first. Raises OSError, UserError."""
    if spec.spec.framework.value == "pytorch" or to.suffix == ".npz":
        shutil.move(source, to)
        return [to.name]
    from coach.core.spec.training import Framework
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.export_model import export_mxnet

    functions = Functions.ready(lambda text: typer.echo(text, err=True), Framework.MXNET)
    return export_mxnet(functions, spec, f"file://{source}", to)

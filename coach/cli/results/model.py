"""`coach model`."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

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
            help="Where to; by default JOB.pt or JOB.params here. -: a tar archive of the checkpoint and its card.",
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
    from coach.cli.job_lookup import find
    from coach.report.model_card import checkpoint_file, chosen_epoch, model_card

    _, past = find(job)
    name, spec = past.job.name, past.job.job_file
    if spec.spec.program is not None:
        raise UserError(f"{name} runs a program, which keeps its model where it chooses; coach logs {name}")
    torch = spec.spec.framework.value == "pytorch"
    chosen = chosen_epoch(past.job, epoch)
    checkpoint = checkpoint_file(chosen)
    if checkpoint is None:
        raise UserError(
            f"the checkpoint of {chosen.name} of {name} is at {chosen.report.weights}, which this machine does "
            "not have; which are kept: spec.checkpoint.keepEvery, coach prune; the best and the last: --epoch best, "
            "--epoch last"
        )
    with checkpoint:
        source = Path(checkpoint.name)
        if str(file) == "-":
            _archive(checkpoint, f"{name}{'.pt' if torch else '.npz'}", model_card(past.job, chosen, source))
            return
    own = f"{name}{'.pt' if torch else '.params'}"
    to = file or Path(own)
    to = to / own if to.is_dir() else to
    if to.exists() and not force:
        raise UserError(f"{to} is there already; --force overwrites it, -o FILE names another")
    try:
        with tempfile.TemporaryDirectory(prefix=".coach-model-", dir=to.parent) as half:
            files = _written(spec, source, Path(half) / to.name)
            for each in files:
                (Path(half) / each).replace(to.with_name(each))
        card = model_card(past.job, chosen, to)
        to.with_name(f"{to.name}.json").write_text(json.dumps(card, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{to}: cannot be written ({error.strerror})") from error
    if output is Format.JSON:
        print_json(
            {
                "job": name,
                "framework": spec.spec.framework.value,
                "file": str(to),
                "files": [str(to.with_name(each)) for each in files],
                "card": f"{to}.json",
                "epoch": chosen.ordinal,
                "loss": chosen.report.loss,
                "accuracy": chosen.report.accuracy,
            }
        )
        return
    said = f", loss {chosen.report.loss:.4f}" if chosen.report.loss is not None else ""
    typer.echo(f"{to}: {name} after {chosen.name} of {past.job.full_epoch_count}{said}")
    typer.echo(f"  {_READ['.pt' if torch else to.suffix if to.suffix in _READ else '.params'].format(file=to)}")
    if len(files) > 1:
        typer.echo(f"  {_SYMBOL.format(to.with_suffix(''))}")


def _archive(checkpoint: BinaryIO, name: str, card: dict[str, Any]) -> None:
    """A tar archive on standard output: the checkpoint as it is, and its card."""
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.addfile(archive.gettarinfo(arcname=name, fileobj=checkpoint), checkpoint)
        content = json.dumps(card | {"file": name}, indent=2).encode() + b"\n"
        entry = tarfile.TarInfo(f"{name}.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def _written(spec: TrainingJob, source: Path, to: Path) -> list[str]:
    """Write the model; the names of the files, `to` first. Raises OSError, UserError."""
    if spec.spec.framework.value == "pytorch" or to.suffix == ".npz":
        shutil.copyfile(source, to)
        return [to.name]
    from coach.core.spec.training import Framework
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.export_model import export_mxnet

    functions = Functions.ready(lambda text: typer.echo(text, err=True), Framework.MXNET)
    return export_mxnet(functions, spec, source.as_uri(), to)

"""`coach init`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from coach.cli import program
from coach.core.errors import UserError


def command(
    script: Annotated[
        Path | None, typer.Argument(metavar="[SCRIPT]", help="A training program, or a model file, in Python.")
    ] = None,
    file: Annotated[Path, typer.Option(metavar="FILE", help="Write the job file there.")] = Path("job.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a job file from five questions.

    Its target, its budget, its workers, and whether it can go on from its own checkpoints. A wrong answer is asked
    again. Enter takes what is in brackets.

    \b
    Examples:
      coach init
      coach init train.py --file jobs/train.yaml
    """
    import yaml

    from coach.jobfiles.framework import defined
    from coach.jobfiles.load import load_contents

    if file.exists() and not force:
        raise UserError(f"{file} is there already; --file names another, --force overwrites it")
    found = script or Path(_ask("Python file that trains, or defines the model", _script(), _readable))
    inside = defined(_readable(str(found)).read_bytes())
    is_model = inside is not None and "net" in inside.names and not inside.is_program
    target = _ask("Target, such as eval_loss=0.3 or accuracy=0.9 (none: the best for the money)", "none", _target)
    budget = _ask("The most that it may spend, such as 5USD, or unlimited", "1USD", program.budget_of)
    workers = _ask("Workers: 1, or 1-4 for Coach to choose among", "1-2" if is_model else "1", program.workers_of)
    given = program.options(target="" if target == "none" else target, budget=budget, workers=workers)
    if is_model:
        document = program.document_of(["python", str(found)], given)
        model = {"model": {"file": os.path.relpath(found, file.parent)}}
        model["data"] = {"format": "custom"} if inside is not None and "data" in inside.names else _data(file.parent)
        own = {name: value for name, value in document["spec"].items() if name not in ("program", "resources")}
        document["spec"] = model | own
    else:
        resumes = typer.confirm("Does it go on from its newest checkpoint when it is started again?", default=False)
        document = program.document_of(["python", str(found)], {**given, "--resumes": resumes})
        if (folder := os.path.relpath(Path.cwd(), file.parent)) != ".":
            document["spec"]["program"]["directory"] = folder
    load_contents([(file, json.dumps(document).encode())])
    file.parent.mkdir(parents=True, exist_ok=True)
    written = yaml.safe_dump(document, sort_keys=False)
    file.write_text(f"# coach validate {file}; coach run {file}\n{written}", encoding="utf-8")
    typer.echo(f"{file} is written; next: coach try {file}, then coach run {file}")


def _data(folder: Path) -> dict[str, str]:
    """The data set of a model file that reads none itself; its path is relative to `folder`."""
    from coach.core.spec.training import DataFormat

    path = Path(_ask("Its data: an .npz file, or a folder", "", _there))
    formats = [one.value for one in DataFormat if one.needs_uri]

    def one_of(text: str) -> None:
        if text not in formats:
            raise ValueError(f"{text or 'nothing'}: one of {', '.join(formats)}")

    kind = "npz" if path.suffix == ".npz" else _ask(f"Its format ({', '.join(formats)})", "", one_of)
    return {"uri": os.path.relpath(path, folder), "format": kind}


def _ask(question: str, default: str, check: Callable[[str], object]) -> str:
    """The answer; asked again while `check` raises UserError or ValueError."""
    while True:
        answer: str = typer.prompt(question, default=default or None, type=str).strip()
        try:
            check(answer)
            return answer
        except (UserError, ValueError) as error:
            typer.echo(f"  {error}", err=True)


def _script() -> str:
    """The folder's only Python file, or that which is called train.py or main.py."""
    names = sorted(path.name for path in Path().glob("*.py"))
    likely = [name for name in ("train.py", "main.py") if name in names]
    return (likely or (names if len(names) == 1 else []) or [""])[0]


def _there(text: str) -> None:
    if not text or not Path(text).exists():
        raise ValueError(f"{text or 'nothing'}: is not there; the path of a file or folder")


def _readable(text: str) -> Path:
    path = Path(text)
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"{text or 'nothing'}: no Python file; its path, such as train.py")
    return path


def _target(text: str) -> None:
    if text not in ("", "none"):
        program.target_of(text)

"""A program on the command line: `coach run --budget 5USD --target eval_loss=0.3 -- python train.py`.

`coach run`, `coach try` and `coach search` take what follows `--` for a command, and their options for the rest of the
job file that it means. Where a service runs, `coach run` gives it the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import re
import shlex
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.options import PROCESSES
from coach.core.errors import UserError
from coach.core.spec.metric_source import WRITTEN

if TYPE_CHECKING:
    from coach.jobfiles.load import LoadedJob

#: The word for no budget.
UNLIMITED = "unlimited"
#: Part of this machine's memory that a program may have, where `--memory` says nothing.
MEMORY_PART = 0.8

Budget = Annotated[
    str,
    typer.Option(
        metavar="AMOUNT", help="Of a program: the most that it may spend, such as 5USD, 20gpuh or 2h; or unlimited."
    ),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="METRIC=VALUE",
        help="Of a program: when it is done, such as eval_loss=0.3, 'reward>=200' or 'x<=2'. With = the metric's name "
        "says whether less is better.",
    ),
]
Metric = Annotated[
    str,
    typer.Option(
        metavar="PATTERN|SOURCE",
        help="Of a program: where the target's metric is: a regular expression for what it prints, with one group, "
        f"such as 'val loss: ([0-9.]+)'; or {WRITTEN}, lines or "
        "status, with #NAME where it has another name there. Without it, `name: 0.31`, `name=0.31`, `name 0.31`, lines "
        "of JSON and what the program sends are found.",
    ),
]
Name = Annotated[str, typer.Option(metavar="NAME", help="Of a program: the job's name; without it, the script's.")]
Workers = Annotated[
    str,
    typer.Option(
        metavar="N or N-M",
        help="Of a program: its number of processes, started as torchrun does; 1-4: Coach chooses, and changes it by "
        "starting the program again (--resumes).",
    ),
]
Cpu = Annotated[
    str,
    typer.Option(
        metavar="CORES",
        help="Of a program: cores of one process; without it, its share of all.",
        rich_help_panel=PROCESSES,
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Of a program: memory of one process, such as 4Gi; without it, its share.",
        rich_help_panel=PROCESSES,
    ),
]
Gpus = Annotated[int, typer.Option(min=0, help="Of a program: GPUs of one process.")]
Image = Annotated[
    str,
    typer.Option(
        metavar="IMAGE",
        help="Of a program on a cluster (coach --context NAME run): the image that it runs in. "
        "The source files of this folder are sent along.",
        rich_help_panel=PROCESSES,
    ),
]
Resumes = Annotated[
    bool,
    typer.Option(
        "--resumes",
        help="Of a program: started again, it goes on from its newest checkpoint, in the folder COACH_CHECKPOINTS.",
    ),
]
StopEarly = Annotated[
    bool,
    typer.Option(
        "--stop-early",
        help="Of a program: end it when its target looks out of reach, though it cannot resume and all is lost then.",
        rich_help_panel=PROCESSES,
    ),
]
Slurm = Annotated[
    str,
    typer.Option(
        metavar="OPTIONS",
        help="Of a program on Slurm (--platform slurm): options for sbatch, as they are: "
        '"--partition=gpu --account=lab".',
        rich_help_panel=PROCESSES,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Of a program: print the job file that the command means; start nothing."),
]

#: What each option is called in a job file.
_FIELDS = {
    "--budget": "spec.budget",
    "--target": "spec.target",
    "--metric": "spec.program.metrics",
    "--image": "spec.image",
    "--name": "metadata.name",
    "--workers": "spec.workers",
    "--cpu": "spec.resources.worker.cpu",
    "--memory": "spec.resources.worker.memory",
    "--gpus": "spec.resources.worker.gpu",
    "--resumes": "spec.program.resumes",
    "--stop-early": "spec.stopEarly",
    "--slurm": "spec.slurm",
}


def options(**given: Any) -> dict[str, Any]:
    """Options of a program by their names on the command line."""
    found = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    return {name: found[name] for name in (*_FIELDS, "--dry-run", "--platform") if name in found}


def text_of(job: LoadedJob) -> str:
    """Its job file."""
    from coach.jobfiles.dump import to_yaml

    return to_yaml(job.spec)


@contextlib.contextmanager
def as_files(jobs: Sequence[LoadedJob], files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """The job files to send to a service: `files`, or, of a program and of changed jobs, one each, while it is sent."""
    if files and not any(job.changed for job in jobs):
        yield files
        return
    with tempfile.TemporaryDirectory(prefix="coach-") as folder:
        paths = [Path(folder, f"{job.spec.name}.yaml") for job in jobs]
        for path, job in zip(paths, jobs, strict=True):
            path.write_text(text_of(job), encoding="utf-8")
        yield paths


def split(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """A command line's own words, and the program behind `--`; None where there is no `--`."""
    at = list(words).index("--") if "--" in words else 0
    if not {"run", "try", "search"} & {*words[:at]}:
        return list(words), None
    return list(words[:at]), list(words[at + 1 :])


def loaded(
    words: typer.Context, files: Sequence[Path] | None, options: Mapping[str, Any], sets: Sequence[str] = ()
) -> LoadedJob | None:
    """The job of a program, from its words and options; None where there are job files instead. Raises UserError.

    `sets`: texts of `--set`.
    """
    command: Sequence[str] | None = words.obj
    given = [name for name, value in options.items() if value and name != "--platform"]
    if command is None:
        if not files:
            raise typer.BadParameter(
                f"no job file and no program: {(own := f'coach {words.info_name}')} FILE, or {own} -- python train.py"
            )
        for file in files:
            if file.suffix in (".py", ".sh", ".ipynb") or file.name in ("python", "python3", "torchrun"):
                program = " ".join(str(one) for one in files)
                start = "" if files[0].name.startswith(("python", "torchrun")) else "python "
                raise UserError(
                    f"{file} is a program, not a job file; it goes behind --: "
                    f"coach run --budget 1USD --target loss=0.3 -- {start}{program}"
                )
        if given:
            raise UserError(f"{', '.join(given)}: only for a program behind --; a job file says it itself")
        return None
    if files:
        raise UserError(f"{files[0]}: a job file or a program behind --, not both")
    if not command:
        raise UserError("nothing follows --: give the program and its arguments")
    if _waits_for_input():
        typer.echo("standard input: a program gets nothing there; name what it reads as a file", err=True)
    return _loaded(command, options, sets)


def _waits_for_input() -> bool:
    """Whether something comes on standard input, by a pipe or from a file."""
    with contextlib.suppress(OSError, ValueError):
        waiting = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
        return not sys.stdin.isatty() and any(waiting)
    return False


def _loaded(command: Sequence[str], options: Mapping[str, Any], sets: Sequence[str]) -> LoadedJob:
    from coach.cli.job_files import say
    from coach.jobfiles.changes import Changes, defaults_file
    from coach.jobfiles.diagnostics import JobFileError
    from coach.jobfiles.load import load_contents

    changes = Changes.read(sets, defaults_file())
    budget = changes.defaults.plain().get("budget")
    document = document_of(command, options, budget if isinstance(budget, dict) else {})
    path = Path("job.yaml")
    try:
        found = load_contents([(path, json.dumps(document).encode())], changes=changes)
        say(found, changes)
        return found[0]
    except JobFileError as error:
        mistakes = []
        for problem in error.problems:
            option = next((name for name, field in _FIELDS.items() if problem.field.startswith(field)), "")
            right = problem.right.replace("resumes: true", "--resumes")
            mistakes.append(f"{option or problem.field}: {problem.problem} ({problem.seen}) - {right}")
        raise UserError("; ".join(mistakes)) from error


def document_of(
    command: Sequence[str], options: Mapping[str, Any], usual: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The job file of a program, as plain data. `usual`: the user's usual budget, or its currency alone."""
    from coach.platforms.local.cluster import machine

    fewest, workers = workers_of(options.get("--workers") or "1")
    program: dict[str, Any] = {"command": list(command)}
    spec: dict[str, Any] = {"program": program}
    if options.get("--image"):
        spec["image"] = options["--image"]
    if options.get("--image") or options.get("--platform") == "slurm":
        cpu, memory = options.get("--cpu") or "1", options.get("--memory") or "2Gi"
    else:
        here = machine()
        cpu = options.get("--cpu") or f"{max(1, int(here.cpu / workers))}"
        memory = options.get("--memory") or f"{max(64, int(here.memory * MEMORY_PART * 1024 / workers))}Mi"
    if options.get("--target"):
        spec["target"] = target_of(options["--target"])
        if options.get("--metric"):
            name = next(
                key if key != "metric" else spec["target"]["metric"]
                for key in ("loss", "accuracy", "metric")
                if key in spec["target"]
            )
            program["metrics"] = {name: options["--metric"]}
    elif options.get("--metric"):
        raise UserError("--metric: only with --target, such as --target loss=0.3")
    if not options.get("--budget") and not usual.keys() - {"currency"}:
        raise UserError("--budget: required, such as --budget 5USD, or --budget unlimited")
    if options.get("--resumes"):
        program["resumes"] = True
    if options.get("--stop-early"):
        spec["stopEarly"] = True
    if options.get("--budget"):
        spec["budget"] = budget_of(options["--budget"], usual.get("currency", ""))
    spec["workers"] = {"min": fewest, "max": workers}
    spec["resources"] = {"worker": {"cpu": cpu, "memory": memory, "gpu": options.get("--gpus") or 0}}
    if options.get("--slurm"):
        try:
            spec["slurm"] = {"options": shlex.split(options["--slurm"])}
        except ValueError as error:
            raise UserError(f"--slurm {options['--slurm']}: {error}; such as '--partition=gpu --account=lab'") from None
    return {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": options.get("--name") or name_of(command)},
        "spec": spec,
    }


def workers_of(text: str) -> tuple[int, int]:
    """The smallest and the largest number of `4` or `1-4`. Raises UserError."""
    found = re.fullmatch(r"\s*([0-9]{1,4})\s*(?:-\s*([0-9]{1,4})\s*)?", text)
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= fewest <= most:
        raise UserError(f"--workers {text}: a number from 1 on, such as 4, or a smallest and a largest: 1-4")
    return fewest, most


def name_of(command: Sequence[str]) -> str:
    """A job's name from the script that a command names: `python -m runs.train_gpt2 --lr 1` is `train-gpt2`."""
    words = [word for word in command if not word.startswith("-")]
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    after_m = [after for before, after in itertools.pairwise(command) if before == "-m"]
    word = (scripts or after_m or words or ["program"])[0]
    stem = Path(word).name.removesuffix(".py").removesuffix(".sh").rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "program"


def target_of(text: str) -> dict[str, Any]:
    """`eval_loss=0.3`, `reward>=200` or `x<=2` as a job file has it. Raises UserError."""
    from coach.core.spec.program import usual_goal

    found = re.fullmatch(r"\s*([^<>=]*[^<>=\s])\s*(<=|>=|=)\s*(\S+?)\s*(%?)\s*", text)
    right = "a metric and its value, such as eval_loss=0.3, 'reward>=200' or 'x<=2'"
    if found is None:
        raise UserError(f"--target {text}: {right}")
    name, sign, number, percent = found.groups()
    try:
        value = round(float(number) / 100.0, 15) if percent else float(number)
    except ValueError:
        raise UserError(f"--target {text}: {number} is not a number; {right}") from None
    if sign == "=" and usual_goal(name) is None:
        raise UserError(
            f"--target {text}: is less of {name} better? --target '{name}<={number}' if so, else '{name}>={number}'"
        )
    usual = {"loss": "<=", "accuracy": ">="}
    if name in usual and sign in ("=", usual[name]) and (name == "loss" or value <= 1.0):
        return {name: value, "epochsInARow": 1}
    goal = {"<=": {"goal": "minimize"}, ">=": {"goal": "maximize"}, "=": {}}[sign]
    return {"metric": name, "value": value, **goal, "epochsInARow": 1}


def budget_of(text: str, currency: str = "") -> dict[str, Any]:
    """`5USD`, or `unlimited`, as a job file has it; `5` is of `currency`. Raises UserError."""
    if text == UNLIMITED:
        return {"unlimited": True}
    from coach.core.money import currency as written

    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]{1,5})?\s*", text)
    unit = written(found[2] or currency) if found else ""
    if found is None or not re.fullmatch("[A-Z]{3}|[a-z]+", unit) or unit in ("MIN", "SEC"):
        raise UserError(
            f"--budget {text}: an amount and its currency, such as 5USD or 0.50EUR, or hours: 20gpuh of GPUs, 8coreh "
            "of cores, 2h; or unlimited. The longest time of a run: --set timeLimit=30m"
        )
    return {"amount": float(found[1]), "currency": unit}

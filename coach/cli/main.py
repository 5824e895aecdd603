"""`coach`: the commands, and the place where errors become lines on stderr and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
import typer.core

from coach import collector
from coach.cli import operations, simulate
from coach.cli.jobs import (
    budget,
    cancel,
    events,
    init,
    logs,
    plan,
    program_module,
    ps,
    resume,
    run,
    search,
    show,
    submit,
    suspend,
    try_,
    validate,
    why,
)
from coach.cli.program import split
from coach.cli.results import compare, export, model, plot, prices, prune
from coach.cli.service import deploy, doctor, serve, ui
from coach.core.errors import CoachError
from coach.jobfiles.diagnostics import JobFileError

INTERRUPTED = 130
#: Where the machine or the platform does not let it.
CANNOT = 5
#: Group of the entry points that add commands.
GROUP = "coach.commands"
#: The error of wrong usage (click's ClickException): typer has its own click from 0.27 on, without a public name.
Misused: Any = typer.BadParameter.__mro__[2]


#: What people of other programs type, and the command here.
OTHER_WORDS = {
    **dict.fromkeys(("list", "ls", "jobs", "queue", "status", "top"), "ps"),
    **dict.fromkeys(("get", "describe", "info"), "show"),
    **dict.fromkeys(("stop", "pause"), "suspend"),
    **dict.fromkeys(("continue", "restart"), "resume"),
    **dict.fromkeys(("kill", "rm", "remove", "abort"), "cancel"),
    **dict.fromkeys(("delete", "clean"), "cancel or coach prune"),
    **dict.fromkeys(("start", "launch", "exec", "train"), "run"),
    **dict.fromkeys(("apply", "create", "enqueue"), "submit"),
    **dict.fromkeys(("watch", "dashboard", "web"), "ui"),
    **dict.fromkeys(("check", "lint"), "validate"),
    **dict.fromkeys(("new", "template", "setup"), "init"),
    "cost": "prices",
    "log": "logs",
    "tail": "logs -f",
    "download": "model",
}


#: Options that went, and the field of a job file that says the same.
REPLACED = {
    "--epochs-in-a-row": "--set target.epochsInARow=3",
    "--time-limit": "--set timeLimit=2h",
    "--batch": "--set program.batch=per-job",
}


class Command(typer.core.TyperCommand):
    """A command whose help shows the options that most people need first, and then panels of others."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """See `click.Command`: one list for each `rich_help_panel`, in the order in which they begin."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                kind = "Options" if param.param_type_name == "option" else "Arguments"
                panels.setdefault(getattr(param, "rich_help_panel", None) or kind, []).append(record)
        for kind in sorted(panels, key=lambda kind: (kind != "Arguments", kind != "Options")):
            with formatter.section(kind):
                formatter.write_dl(panels[kind])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command`; an option that went gets what replaces it."""
        own = {name for param in self.get_params(ctx) for name in param.opts}
        for word in args:
            name = word.partition("=")[0]
            if name in REPLACED and name not in own and "--set" in own:
                ctx.fail(f"No such option: {name}. A job file's field says it: {REPLACED[name]}")
        return super().parse_args(ctx, args)


class Commands(typer.core.TyperGroup):
    """Coach's own commands, and those that installed packages bring: entry points of the group `coach.commands`.

    The value of an entry point is a function with typer's parameters. Installed packages are searched only for a name
    that is not Coach's own, and for the help.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See `click.Group`."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            for point in metadata.entry_points(group=GROUP, name=cmd_name):
                alone = typer.Typer(add_completion=False, rich_markup_mode=None)
                alone.command(name=cmd_name, cls=Command)(point.load())
                self.add_command(found := typer.main.get_command(alone))
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Group`; an unknown name gets the command that other programs call so."""
        meant = OTHER_WORDS.get(args[0])
        if meant is not None and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean coach {meant}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """See `click.Group`."""
        own = super().list_commands(ctx)
        return [*own, *sorted({point.name for point in metadata.entry_points(group=GROUP)} - {*own})]


app = typer.Typer(
    name="coach",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a job failed, 2 usage or a bad file, 3 budget exhausted, 4 target unreachable, "
    "5 platform, 130 interrupted.",
)
#: In the order of the help: running jobs, looking at them, files, figures, the rest.
COMMANDS = (
    *(run, search, serve, submit, suspend, resume, cancel),
    *(ps, show, why, events, logs, ui),
    simulate,
    *(plan, prices, init, validate, try_, program_module, deploy),
    *(model, compare, prune, export, plot),
    doctor,
)
for command in COMMANDS:
    name = command.__name__.rpartition(".")[2].rstrip("_").replace("_", "-")
    app.command(name=name, cls=Command)(command.command)
app.add_typer(budget.app, name="budget")


def _version(wanted: bool) -> None:
    if wanted:
        number = "(not installed)"
        with contextlib.suppress(metadata.PackageNotFoundError):
            number = metadata.version("coach-trainer")
        typer.echo(f"coach {number}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def coach(
    context: typer.Context,
    cluster: str = typer.Option(
        "",
        "--context",
        metavar="NAME",
        help="Look at and change the jobs of the cluster of this kubeconfig context.",
    ),
    namespace: str = typer.Option("", "--namespace", metavar="NAME", help="With --context: Coach's namespace there."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks. Works anywhere on the line."),
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the versions of Coach and Python, and exit.",
        is_eager=True,
        callback=_version,
    ),
) -> None:
    """Train to a target within a budget.

    Coach takes a job file with a training script, a data set, a target and a budget. While the job trains, it
    finds how many workers and parameter servers to give each epoch.

    Example: coach run jobs/lenet-digits.yaml
    """
    operations.choose(cluster, namespace, context.invoked_subcommand)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    collector.look_seldom()
    if _closed_streams():
        _tell("coach: standard output is closed, so nothing was done; to see nothing: > /dev/null")
        sys.exit(CANNOT)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal whose encoding lacks our arrows still gets the rest
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in options
    code = invoke([word for word in options if word != "--debug"] + given[len(options) :], debug=debug)
    sys.exit(_flush() or code)


def invoke(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run one command; its exit code. Every error ends here."""
    try:
        own, program = split(arguments)
        code = typer.main.get_command(app).main(own, prog_name="coach", standalone_mode=False, obj=program)
        return code if isinstance(code, int) else 0
    except typer.Abort:
        return INTERRUPTED
    except Misused as error:
        if debug:
            traceback.print_exc()
        error.show()
        return int(error.exit_code)
    except JobFileError as error:
        if debug:
            traceback.print_exc()
        _tell(str(error))  # a line a mistake, each beginning with its place, as editors expect them
        many = len(error.problems)
        _tell(f"coach: {many} mistake{'' if many == 1 else 's'}; nothing was started")
        return error.exit_code
    except CoachError as error:
        if debug:
            traceback.print_exc()
        _tell(f"coach: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        if words := _of_the_machine(error, arguments):
            _tell(f"coach: {words}")
            return CANNOT
        _tell(f"coach: this is a bug of Coach: {type(error).__name__}: {error}")
        _tell(f"coach: please report it to {_issues()}, with what the same command shows with --debug")
        return 1


def _closed_streams() -> bool:
    """Whether standard output is closed. What is closed leads nowhere from now on: no file gets its number."""
    closed = sys.stdout is None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - it stays open
    return closed


def _of_the_machine(error: Exception, arguments: Sequence[str]) -> str:
    """What is wrong with the machine, or where Coach is to write; empty where the mistake is Coach's."""
    home = os.environ.get("COACH_HOME", "")
    with contextlib.suppress(OSError):
        for text in (*arguments, str(Path.cwd()), home):
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                shown = text.encode(errors="backslashreplace").decode()
                encoding = sys.getfilesystemencoding()
                return (
                    f"{shown} is no text in {encoding}, which this Python reads names by; LC_ALL=C.UTF-8, or rename it"
                )
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: " if isinstance(error.filename, str) else "cannot write or read: "
        return f"{what}{error.strerror[0].lower()}{error.strerror[1:]}"
    if type(error).__module__ == "sqlite3":
        return f"the state folder {home or 'of Coach'} cannot be used ({error}); COACH_HOME names another"
    return ""


def _issues() -> str:
    """Where bugs are reported: from the installed package's metadata."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for entry in metadata.metadata("coach-trainer").get_all("Project-URL") or []:
            label, _, url = entry.partition(", ")
            if label.lower() in ("issues", "bug tracker", "tracker"):
                return str(url)
    return "the project's issue tracker"


def _tell(line: str) -> None:
    """Print a line on stderr, if it is still open."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _flush() -> int:
    """Flush stdout, else drop the rest, without Python's own message at exit; 0, or the exit code of why."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _tell(f"coach: standard output: {error.strerror}")
            return CANNOT
    return 0


if __name__ == "__main__":
    main()

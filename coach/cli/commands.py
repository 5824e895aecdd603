"""The commands, each imported when it is asked for, and what `coach` itself takes."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import platform
import traceback
from collections.abc import Sequence
from typing import Any

import typer
import typer.core

from coach.cli import operations
from coach.cli.program import split

#: Of a command that was stopped by Ctrl-C.
INTERRUPTED = 130
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
        if cmd_name not in self.commands and (found := _found(cmd_name)) is not None:
            if not isinstance(found, typer.Typer):
                function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
                found.command(name=cmd_name, cls=Command)(function)
            self.add_command(typer.main.get_command(found), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Group`; an unknown name gets the command that other programs call so."""
        if self.get_command(ctx, args[0]) is None:
            if (meant := OTHER_WORDS.get(args[0])) is not None:
                ctx.fail(f"No such command {args[0]!r}. Did you mean coach {meant}?")
            for name in COMMANDS:  # those that a name is compared with
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """See `click.Group`."""
        from importlib import metadata

        return [*COMMANDS, *sorted({point.name for point in metadata.entry_points(group=GROUP)} - {*COMMANDS})]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See `click.Group`; the parameters of the commands, which take long to make, are not needed for it."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name).get_short_help_str(limit)) for name in names])


def _summary(name: str) -> typer.core.TyperCommand:
    """A command with its help alone."""
    found = _found(name)
    words = found.info.help if isinstance(found, typer.Typer) else found.__doc__
    return typer.core.TyperCommand(name, help=inspect.cleandoc(words or ""))


def _found(name: str) -> Any:
    """A command's function, or the app of one that has commands below it; None for a name that there is not."""
    if name in COMMANDS:
        module = importlib.import_module(f"coach.cli.{COMMANDS[name]}")
        return getattr(module, "app", None) or module.command
    from importlib import metadata

    return next((point.load() for point in metadata.entry_points(group=GROUP, name=name)), None)


app = typer.Typer(
    name="coach",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a job failed, 2 usage or a bad file, 3 budget exhausted, 4 target unreachable, "
    "5 platform, 130 interrupted.",
)
#: The module of each command, in the order of the help: running jobs, looking at them, files, figures, the rest.
COMMANDS = {
    name.rpartition(".")[2].rstrip("_").replace("_", "-"): name
    for name in (
        *("jobs.run", "jobs.search", "service.serve", "jobs.submit", "jobs.suspend", "jobs.resume", "jobs.cancel"),
        *("jobs.ps", "jobs.show", "jobs.why", "jobs.events", "jobs.logs", "service.ui"),
        "simulate",
        *("jobs.plan", "results.prices", "jobs.init", "jobs.validate", "jobs.try_", "jobs.program_module"),
        "service.deploy",
        *("results.model", "results.compare", "results.prune", "results.export", "results.plot"),
        "service.doctor",
        "jobs.budget",
    )
}


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

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


def run(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run one command; its exit code. Wrong usage ends here, all other errors are raised."""
    try:
        own, program = split(arguments)
        code = typer.main.get_command(app).main(own, prog_name="coach", standalone_mode=False, obj=program)
    except typer.Abort:
        return INTERRUPTED
    except Misused as error:
        if debug:
            traceback.print_exc()
        error.show()
        return int(error.exit_code)
    return code if isinstance(code, int) else 0

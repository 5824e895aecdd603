"""What every command says to what is wrong, with its exit code: pages in `__snapshots__/test_wrong_inputs`."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from syrupy.assertion import SnapshotAssertion

import coach
from coach.cli.commands import COMMANDS
from coach.cli.main import invoke
from coach.core.errors import CoachError
from coach.handler.state.state_directory import StateDirectory
from tests.wording.commands import WRONG, prepared
from tests.wording.conftest import CHANGED

pytestmark = pytest.mark.standard

PRODUCT = Path(coach.__file__).parent
#: Rooms whose UserErrors no command line alone raises: they answer HTTP, or ask a cluster.
ELSEWHERE = ("service", "platforms/kubernetes", "platforms/kubernetes_api", "platforms/nuclio", "controller")
#: Lines with the same, by file and function, and what raises them.
NEEDS = {
    **dict.fromkeys(
        ("cli/jobs/plan.py _probe", "cli/jobs/run.py _there", "handler/policies.py with_policy"), "a service"
    ),
    **dict.fromkeys(
        ("cli/cluster_jobs.py _run_jobs",),
        "a cluster",
    ),
    **dict.fromkeys(("cli/results/model.py command", "cli/results/prune.py command"), "checkpoints"),
    **dict.fromkeys(
        ("plugins.py _from_package", "plugins.py extension", "handler/state/checkpoints.py _files"),
        "packages that are installed, or not",
    ),
    **dict.fromkeys(("handler/handler.py submit", "handler/handler.py refuse"), "a handler that runs"),
    **dict.fromkeys(
        (
            "handler/session.py _common_journal",
            "handler/session.py _open_accounts",
            "handler/prior_runs.py initial_weights",
        ),
        "a handler that starts",
    ),
    "cli/jobs/ps.py _show_devices": "a cluster",
    "cli/jobs/search.py _run": "a service, or a search that has begun",
    "handler/search/samplers.py _optuna": "an installation without Optuna",
    "report/figures/search.py plot": "a search that has begun",
    "handler/search/definition.py named": "1,000 searches",
    "handler/state/journal.py read": "a script: commands look for a journal before they read it",
    "handler/state/state_directory.py open_journal": "100 handlers",
    **dict.fromkeys(
        ("platforms/local/devices/__init__.py _named", "platforms/local/devices/nvml.py refuse_index"),
        "GPUs",
    ),
    **dict.fromkeys(
        ("cli/results/prices.py _keep_here", "platforms/local/cloud_machine.py machine_of"), "a cloud's machine"
    ),
    "handler/clock.py refuse_gap": "a handler that has been away for a day",
    "jobfiles/own_prices.py keep": "a folder that cannot be written",
    "platforms/local/export_model.py export_mxnet": "a trained net",
    "report/simulation/page.py write_page": "a simulation that has ended",
    "report/simulation/tables.py write_rows": "a simulation that has ended",
    "report/simulation/tables.py _arrow": "an installation without pyarrow",
}


def kept() -> set[str]:
    """The files that are there but for those of state folders, and the jobs with all that is known of them."""
    files = {str(path) for path in Path().rglob("*") if path.parts[0] not in ("home", "busy")}
    return files | {repr(stored.job) for stored in StateDirectory.default().past().values()}


def answer(line: str, folder: Path) -> str:
    """The line, its exit code, and what was said, as a page shows it."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        words = shlex.split(line)
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        out, err = (
            stack.enter_context(to(io.StringIO())) for to in (contextlib.redirect_stdout, contextlib.redirect_stderr)
        )
        try:
            code: Any = invoke(words[1:])
        except SystemExit as end:  # argparse
            code = end.code
    said = "".join(f"  {text}".rstrip() + "\n" for text in err.getvalue().replace(str(folder), "~").splitlines())
    printed = "".join(f"  | {text}".rstrip() + "\n" for text in out.getvalue().replace(str(folder), "~").splitlines())
    return f"$ {line}\nexit {code}\n{printed}{said}"


@pytest.fixture(scope="module")
def found(surroundings: Path) -> Iterator[tuple[dict[str, str], set[tuple[str, int]]]]:
    """All pages by their names; the lines of code that raised an error of Coach."""
    raised = set[tuple[str, int]]()

    def made(kind: type[CoachError], *words: Any, **more: Any) -> CoachError:
        frame = sys._getframe(1)
        raised.add((frame.f_code.co_filename, frame.f_lineno))
        return Exception.__new__(kind, *words)

    with pytest.MonkeyPatch.context() as patch, prepared():
        before = kept()
        patch.setattr(CoachError, "__new__", made, raising=False)
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))  # most of the time
        pages = {
            name: "\n".join(answer(line.strip(), surroundings) for line in lines.strip().splitlines())
            for name, lines in WRONG.items()
        }
        assert kept() ^ before == set(), "a command line that is wrong leaves everything as it was"
    yield pages, raised


@pytest.mark.parametrize("command", WRONG)
def test_wrong(command: str, found: tuple[dict[str, str], Any], page: SnapshotAssertion) -> None:
    assert found[0][command] == page, CHANGED


def test_every_command_has_a_page() -> None:
    modules = {*COMMANDS.values()}
    lines = "WRONG of tests/wording/commands.py has wrong lines of each command; then run with --snapshot-update"
    assert modules | {"main", "operations"} == set(WRONG), lines


def errors() -> Iterator[tuple[str, str, range]]:
    """File, function and lines of every UserError that a command line can raise."""
    for file in sorted(PRODUCT.rglob("*.py")):
        name = file.relative_to(PRODUCT).as_posix()
        if name.startswith(ELSEWHERE):
            continue
        functions = [
            one
            for one in ast.walk(ast.parse(file.read_text()))
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for function in functions:
            for one in ast.walk(function):
                if (
                    isinstance(one, ast.Raise)
                    and isinstance(one.exc, ast.Call)
                    and ast.unparse(one.exc.func) == "UserError"
                ):
                    yield name, function.name, range(one.lineno, (one.end_lineno or one.lineno) + 1)


def test_every_error_is_on_a_page(found: tuple[Any, set[tuple[str, int]]]) -> None:
    missing = [
        f"{name}:{lines[0]} {function}"
        for name, function, lines in errors()
        if not any((str(PRODUCT / name), line) in found[1] for line in lines) and f"{name} {function}" not in NEEDS
    ]
    assert not missing, "raised by no line of tests/wording/commands.py: " + "\n".join(missing)

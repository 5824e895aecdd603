"""`coach`: the place where errors become lines on stderr and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from coach import collector
from coach.cli import operations
from coach.core.errors import CoachError
from coach.jobfiles.diagnostics import JobFileError

INTERRUPTED = 130
#: Where the machine or the platform does not let it.
CANNOT = 5


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
        if _at_once(arguments):
            return 0
        from coach.cli import commands

        return commands.run(arguments, debug=debug)
    except (KeyboardInterrupt, BrokenPipeError):
        return INTERRUPTED
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        return _reported(error, arguments)


def _at_once(words: Sequence[str]) -> bool:
    """Carry out `ps`, `why JOB` or `show JOB`: to import what reads options takes longer. False for other words."""
    match words:
        case ["ps"]:
            from coach.cli.display.all_jobs import ps

            shown: Callable[[], None] = ps
        case ["why", name] if not name.startswith("-"):
            from coach.cli.display.lines import why

            shown = partial(why, name)
        case ["show", name] if not name.startswith("-"):
            from coach.cli.display.one_job import show

            shown = partial(show, name)
        case _:
            return False
    operations.choose("", "", words[0])
    shown()
    return True


def _reported(error: Exception, arguments: Sequence[str]) -> int:
    """Say on stderr what is wrong; the exit code."""
    if isinstance(error, JobFileError):
        _tell(str(error))  # a line a mistake, each beginning with its place, as editors expect them
        many = len(error.problems)
        _tell(f"coach: {many} mistake{'' if many == 1 else 's'}; nothing was started")
        return error.exit_code
    if isinstance(error, CoachError):
        _tell(f"coach: {error}")
        return error.exit_code
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
    from importlib import metadata

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

"""Runs a program, and ends all that it has started: `python -m training.keeper --lifeline FD -- COMMAND ...`.

What is guaranteed
------------------
No process that the command has started, directly or not, is left when the keeper has ended, whichever session, process
group or parent it has, and whichever signals it ignores. That holds when the command ends, when it is killed, and when
the other end of the lifeline is closed, which the kernel does for a process that is killed. The keeper is a child
subreaper: the kernel makes orphans of its descendants its children, so that none gets out of its tree. That needs no
root, and works in containers.

An orphan ends within LOOK_SECONDS of its parent. The command can except some: it writes their ids, a line each, to the
descriptor that KEPT_VARIABLE names, and they may outlast it; the keeper waits for them. Only SIGKILL to the keeper
itself leaves processes behind.
"""

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from training import linux

#: The environment variable with the number of the descriptor to which the command writes ids of processes to keep.
KEPT_VARIABLE = "COACH_KEPT_FD"
#: Seconds between two looks for orphans.
LOOK_SECONDS = 0.5


class Keeper:
    """Runs one command; `lifeline` is the reading end of a pipe."""

    def __init__(self, command: list[str], lifeline: int, remove: Path | None) -> None:
        self._remove, self._folder = remove, remove and remove.parent
        self._lifeline = lifeline
        self._kept: set[int] = set()
        self._said, said = os.pipe()
        os.set_blocking(self._said, False)
        linux.adopt_orphans()
        keeper = os.getpid()

        environment = {**os.environ, KEPT_VARIABLE: str(said)}
        self._command = subprocess.Popen(
            command,
            pass_fds=(said,),
            env=environment,
            preexec_fn=lambda: linux.die_with_parent(keeper),  # noqa: PLW1509 - here are no threads
        )
        os.close(said)

    def run(self) -> int:
        """Until the command has ended, those to be kept too, or the lifeline is closed; the command's exit code."""
        while not select.select([self._lifeline], [], [], LOOK_SECONDS)[0]:
            self._hear()
            if self._command.poll() is not None:
                self._forget_command()
                if not self._kept:
                    break
            linux.end_descendants(os.getpid(), self._kept | {self._command.pid})
        self._command.kill()
        code = self._command.wait()
        linux.end_descendants(os.getpid(), set())
        self._forget_command()
        if self._folder is not None:
            for left in self._folder.glob("*.sock"):  # of those that were kept
                left.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # there is more in it
                self._folder.rmdir()
        return code if code >= 0 else 128 - code

    def _hear(self) -> None:
        """Which processes are to be kept: those that the command has named, and that have not ended."""
        with contextlib.suppress(BlockingIOError):
            for line in os.read(self._said, 1 << 16).split():
                self._kept.add(int(line))
        self._kept = {pid for pid in self._kept if linux.is_running(pid)}

    def _forget_command(self) -> None:
        if self._remove is not None:
            self._remove.unlink(missing_ok=True)
            self._remove = None


def main() -> int:
    """Run the command that follows the options."""
    parser = argparse.ArgumentParser(prog="python -m training.keeper", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--lifeline", type=int, required=True, help="end all when the other end of this pipe is closed")
    parser.add_argument(
        "--remove",
        type=Path,
        metavar="FILE",
        help="delete this file when the command has ended; at last its folder, where that has sockets alone",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: the program and its arguments")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the holder of the lifeline ends it
    return Keeper(options.command[options.command[:1] == ["--"] :], options.lifeline, options.remove).run()


if __name__ == "__main__":
    sys.exit(main())

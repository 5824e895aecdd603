"""Python programs that tests start, forked from the tests: what these have imported is not imported anew.

An import of the handler and of what it computes with takes 2 seconds of a processor, the tests start it 100 times.
`tests/cli/test_imports.py` and `tests/docs` hold what a program that starts by itself imports.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from coach.handler.warm_up import for_fits


class Forked(subprocess.Popen[Any]):
    """`Popen` of `[sys.executable, "-m", MODULE, ...]`, with what `Popen` does for its streams, its folder and its end.

    Its command line in /proc is that of the tests. What a test has patched at its start is patched in it too.
    """

    def _execute_child(
        self, args: Sequence[str], _executable: Any, _preexec: Any, _close_fds: bool, pass_fds: Sequence[int],
        cwd: str | os.PathLike[str] | None, env: Mapping[str, str] | None, _startup: Any, _flags: int, _shell: bool,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        _restore_signals: bool, _gid: Any, _gids: Any, _uid: Any, _umask: int, start_new_session: bool, _group: int,
    ) -> None:  # fmt: skip
        python, option, module, *words = map(str, args)
        assert (python, option) == (sys.executable, "-m"), args
        _import()
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
            return
        try:
            _streams((p2cread, c2pwrite, errwrite), pass_fds)
            if start_new_session:
                os.setsid()
            if cwd is not None:
                os.chdir(cwd)
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            _forget()
            _run(module, words)
        finally:
            os._exit(1)


@cache
def _import() -> None:
    """What `coach run` does: once, by the tests that start the first."""
    for name in ("cli.commands", "cli.clusters", "cli.job_files", "cli.jobs", "service.local", "service.operations"):
        importlib.import_module(f"coach.{name}")
    for_fits()


def _streams(given: Sequence[int], keep: Sequence[int]) -> None:
    """These as standard input, output and error (-1: as they are), and no other but `keep`."""
    copies = [os.dup(target if one == -1 else one) for target, one in enumerate(given)]
    for target, copy in enumerate(copies):
        os.dup2(copy, target)
    for one in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if one > 2 and one not in keep:
            with contextlib.suppress(OSError):
                os.close(one)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1, errors="backslashreplace")


def _forget() -> None:
    """What is the tests' own: objects that would be collected, handlers of signals, of logs, of the end."""
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for one in signal.valid_signals():
        if one != signal.SIGINT and callable(signal.getsignal(one)):
            signal.signal(one, signal.SIG_DFL)
    logging.root.handlers.clear()
    warnings.simplefilter("ignore")
    atexit._clear()


def _run(module: str, words: Sequence[str]) -> NoReturn:
    sys.argv = [module, *words]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(OSError, ValueError):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def output(command: Sequence[str], **options: Any) -> str:
    """What a command says to its standard output, to its end."""
    with Forked(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options) as started:
        return str(started.communicate()[0])

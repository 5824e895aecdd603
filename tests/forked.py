"""Processes that are forked from the one that runs the tests, which has imported everything already.

Each has its own signals, environment, folder and standard streams, as if Python had been started anew. It saves the
imports: three CPU seconds a service, one and a half a command.
"""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import functools
import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import coach.cli.main
from coach.handler import warm_up

#: What runs as a program: it reads sys.argv, and returns its exit code or exits with it.
Main = Callable[[], Any]


class Forked(subprocess.Popen):
    """`subprocess.Popen` of a function of this process: the first word of the command is its name."""

    def __init__(self, main: Main, *words: str, **options: Any) -> None:
        _import_the_late()
        self._main = main
        super().__init__([main.__module__, *words], text=True, **options)

    def _execute_child(self, words: Any, *rest: Any) -> None:
        """In place of the part of `subprocess` that forks and executes; what it gets is its own (Python 3.11)."""
        cwd, env, new_session, streams = rest[4], rest[5], rest[-2], rest[9:15]
        child = os.fork()
        if child == 0:
            _become(self._main, words, cwd, env, new_session, (streams[0], streams[3], streams[5]))
        self.pid, self._child_created = child, True
        self._close_pipe_fds(*streams)


def coach_forked(*words: str, **options: Any) -> Forked:
    """A `coach` with these words."""
    return Forked(coach.cli.main.main, *words, **options)


@functools.cache
def _import_the_late() -> None:
    """What Coach imports when it is wanted, here once for all."""
    warm_up.for_fits()
    for name in ("uvicorn.lifespan.on", "uvicorn.protocols.http.auto", "coach.service.serve", "coach.handler.session"):
        importlib.import_module(name)


def _become(
    main: Main, words: list[str], cwd: Path | None, env: Mapping[str, str] | None, new_session: bool, streams: Any
) -> None:
    """Be another program from here on. Never returns."""
    code = 1
    try:
        gc.freeze()  # nothing of the tests is ever closed here, where its file's number is another's
        atexit._clear()
        faulthandler.disable()
        for target, stream in enumerate(streams):
            if stream not in (-1, target):
                os.dup2(stream, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if new_session:
            os.setsid()
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        os.chdir(cwd or ".")
        _as_at_a_start()
        sys.argv = [*words]
        code = main()
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _as_at_a_start() -> None:
    """Signals, streams, warnings, logs and loops as Python has them when it starts."""
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = sys.__stdin__, sys.__stdout__ = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1)
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    asyncio._set_running_loop(None)
    asyncio.set_event_loop_policy(None)

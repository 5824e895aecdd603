"""Reports to Coach, and asks it, from any training program. Without Coach nothing in this file does anything.

Copy it next to your program: `coach program-module > coach_program.py`. It needs Python 3.8 or later, and no package.

    import coach_program

    for epoch in range(epochs):
        ...
        coach_program.report(epoch=epoch + 1, eval_loss=loss)
        if coach_program.should_stop():
            save()
            break
        if coach_program.checkpoint_now():
            save()

In a group of several processes each of them asks, and all leave as soon as one is to: they must agree after which step.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request


def report(epoch: float | None = None, **values: float) -> None:
    """Report metrics, such as `report(eval_loss=0.3, epoch=2.5)`.

    `epoch` says how many passes over the data the model was trained; a program that goes on from a checkpoint goes on
    counting. Without it each report counts as one.
    """
    numbers = {name: float(value) for name, value in values.items()}
    if epoch is not None:
        numbers["epoch"] = float(epoch)
    _coach.send({"values": numbers})


def should_stop() -> bool:
    """Whether the program is to end: write what is needed, and leave within the job's grace period."""
    _coach.ask()
    return _coach.stop


def checkpoint_now() -> bool:
    """Whether to write a checkpoint now, which is asked for every five minutes; write one, too, at the end."""
    _coach.ask()
    wanted, _coach.checkpoint = _coach.checkpoint, False
    return wanted


def group_changed() -> bool:
    """Whether the group of workers is to be formed anew, by the variables of torchrun as they are now.

    True at the first call: make it before the group is formed. A worker that starts later waits there until the others
    take it in, and one that is to leave ends in its call (SystemExit). All workers call it equally often, where they
    have trained the same steps; each waits for the others. A call takes some milliseconds.
    """
    first, _coach.called = not _coach.called, True
    _coach.send({"group": True})
    while "wait" in _coach.group:
        _coach.send({"group": True})
    if "leave" in _coach.group:
        raise SystemExit
    os.environ.update(_coach.group.get("env", {}))
    return first or "env" in _coach.group


class _Coach:
    """The connection to Coach, where there is one, and what it has asked for."""

    #: Seconds between two questions, at least; and after one that failed.
    pause, pause_after_failure = 0.5, 5.0

    def __init__(self) -> None:
        self.asks = self.stop = self.checkpoint = self.called = False
        self.group: dict[str, dict[str, str]] = {}
        self._next = 0.0
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self) -> None:
        if not self.asks or (not self.stop and time.monotonic() >= self._next):
            self.asks = True
            self.send({})

    def send(self, what: dict[str, object]) -> None:
        self.group = {}
        if "COACH_JOB" not in os.environ:
            return
        self._next = time.monotonic() + self.pause
        try:
            with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"], encoding="utf-8") as file:  # noqa: PTH123
                headers = {"Authorization": f"Bearer {file.read()}"}
            url, data = (
                os.environ["KUBEFLOW_TRAINER_SERVER_URL"],
                json.dumps({"asks": self.asks, **what}).encode(),
            )
            request = urllib.request.Request(url, data, headers)  # noqa: S310
            with self._opener.open(request, timeout=5) as response:
                answer = json.loads(response.read().decode())
        except (OSError, ValueError, KeyError):
            self._next = time.monotonic() + self.pause_after_failure
            return
        self.stop = self.stop or bool(answer.get("stop"))
        self.checkpoint = self.checkpoint or bool(answer.get("checkpoint"))
        self.group = answer.get("group") or {}


_coach = _Coach()

"""The machine's speed while something else is measured: a small fixed task, repeated.

Other machines on the same host slow this one by some per cent for minutes, both computing and copying. So the task is
both: two products of matrices and a copy, some 3 ms of one core every quarter of a second (1 %). It counts CPU seconds,
not wall time, so that the load of what is measured does not count.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import Any, Self

import numpy as np

EVERY_SECONDS = 0.25
#: The share of readings left out at either end: an interrupt may fall into one.
TRIMMED = 0.05
SIZE = 384
COPIED_BYTES = 8 << 20


class MachineSpeed:
    """Repeats the task from entering to leaving, in a process of its own; `seconds` is its mean afterwards."""

    seconds: float

    def __enter__(self) -> Self:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.training.machine_speed"]
        self._process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the measurement of the machine's speed did not start: see above")
        return self

    def __exit__(self, *_: Any) -> None:
        # It runs until its input is closed, which also happens when this process dies.
        said = self._process.communicate()[0]
        self.seconds = float(said)


def trimmed_mean(readings: list[float]) -> float:
    """Their mean without the smallest and the largest."""
    out = int(len(readings) * TRIMMED)
    return float(np.mean(sorted(readings)[out : len(readings) - out]))


def main() -> None:
    """Repeat the task until the input is closed, and print its mean CPU seconds."""
    factor = np.random.default_rng(1).random((SIZE, SIZE), dtype=np.float32)
    product, source = np.empty_like(factor), np.zeros(COPIED_BYTES, dtype=np.uint8)
    target = source.copy()
    readings: list[float] = []
    print("reading", flush=True)
    while not readings or not select.select([sys.stdin], [], [], EVERY_SECONDS)[0]:
        began = time.process_time()
        for _ in range(2):
            np.matmul(factor, factor, out=product)
        np.copyto(target, source)
        readings.append(time.process_time() - began)
    # The first one has cold caches.
    print(trimmed_mean(readings[1:] or readings))


if __name__ == "__main__":
    main()

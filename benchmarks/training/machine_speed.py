"""How fast the machine is while something else is measured: a little work of always the same size, again and again.

Other machines on the same host slow this one by some per cent for minutes on end, what computes and what copies alike.
So the work is both: two products of matrices and a copy, some 3 ms of one core every quarter of a second (1 %). What
counts is the core's seconds, not the wall's: that what is measured leaves it less of a core says nothing.
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
#: Of the readings so many are left out at either end: an interrupt may fall into one.
TRIMMED = 0.05
SIZE = 384
COPIED_BYTES = 8 << 20


class Yardstick:
    """Reads from entering to leaving, in a process of its own; `seconds` is the mean reading afterwards."""

    seconds: float

    def __enter__(self) -> Self:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.training.machine_speed"]
        self._process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the yardstick did not start: see above")
        return self

    def __exit__(self, *_: Any) -> None:
        # It reads until its input is closed, which it is too when this process dies.
        said = self._process.communicate()[0]
        self.seconds = float(said)


def trimmed_mean(readings: list[float]) -> float:
    """Their mean without the least and the largest."""
    out = int(len(readings) * TRIMMED)
    return float(np.mean(sorted(readings)[out : len(readings) - out]))


def main() -> None:
    """Read until the input is closed, and say the mean seconds of a core."""
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
    # The first finds nothing where it needs it.
    print(trimmed_mean(readings[1:] or readings))


if __name__ == "__main__":
    main()

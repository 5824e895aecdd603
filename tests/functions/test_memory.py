"""What a group's process frees between two steps it has again at once, without the kernel."""

import subprocess

import pytest

from tests.functions.hosting import FUNCTIONS, PYTHON

pytestmark = pytest.mark.mxnet

#: Pages that the kernel hands out while several arrays are filled and freed again and again.
SCRIPT = """
import resource, sys
import numpy as np
from training import linux

if sys.argv[1] == "kept":
    linux.keep_freed_memory()

def step():
    arrays = [np.ones(2 << 20) for _ in range(6)]  # 16 MiB each

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([PYTHON, "-c", SCRIPT, how], cwd=FUNCTIONS, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_freed_memory_is_kept_for_the_next_step() -> None:
    pages = 6 * (16 << 20) // 4096
    assert faults("kept") < pages < faults("given back")

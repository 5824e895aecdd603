"""The journals of real runs."""

from pathlib import Path

import pytest

from benchmarks.training.fidelity import read

JOURNALS = read(Path("results/simulation/journals"))

#: For slow tests: the second and third run of the same jobs are left to `make all-tests`.
ONE_OF_EACH = [
    pytest.param(each, id=each.name, marks=[] if each.name.endswith("-1") else pytest.mark.full) for each in JOURNALS
]

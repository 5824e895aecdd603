"""A job file's optimizer is one that the functions' Python has; where that cannot be asked, the functions refuse it."""

from pathlib import Path

import pytest

from coach.handler.known_optimizers import optimizers_here
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.optimizers import Knows, nothing_known
from tests.jobfiles.reading import read_jobs
from tests.jobfiles.test_load import GOOD


def entries(name: str) -> list[tuple[str, str]]:
    """(lines, message) pairs of a golden file."""
    blocks = (Path(__file__).parent / name).read_text(encoding="utf-8").strip("\n").split("\n\n")[1:]
    return [tuple(block.rsplit("\n", 1)) for block in blocks]


CASES = [
    *(pytest.param(*each, marks=pytest.mark.mxnet) for each in entries("mistakes_mxnet.txt")),
    *(pytest.param(*each, marks=pytest.mark.pytorch) for each in entries("mistakes_pytorch.txt")),
]


def mistakes(text: str, knows: Knows) -> list[str]:
    try:
        read_jobs(text, "f", knows)
    except JobFileError as error:
        return [str(problem).removeprefix("f:") for problem in error.problems]
    return []


@pytest.mark.parametrize(("lines", "message"), CASES)
def test_what_the_functions_python_would_refuse_is_said_with_its_place(lines: str, message: str) -> None:
    assert mistakes(f"{GOOD}{lines}\n", optimizers_here) == [message]


@pytest.mark.parametrize("framework", ["mxnet", "pytorch"])
def test_where_no_python_can_be_asked_every_name_is_left_to_the_functions(framework: str) -> None:
    lines = f"  framework: {framework}\n  optimizer: {{name: Unheard, lr: 0.1, of: 1}}\n"
    assert mistakes(GOOD + lines, nothing_known) == []

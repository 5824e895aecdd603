"""Three people share four GPUs, and what holds them is killed: `make chaos GPUS=4` does it for long."""

from pathlib import Path

import pytest

from tests.chaos.gpus.box import Box

pytestmark = [pytest.mark.processes, pytest.mark.full, pytest.mark.timeout(900)]


def test_no_gpu_is_given_twice_or_lost_whatever_is_killed(tmp_path: Path) -> None:
    box = Box(tmp_path, 4, seed=0)
    try:
        assert [lost for _ in range(10) for lost in box.kill().lost] == []
        assert box.end() == []
    finally:
        box.close()

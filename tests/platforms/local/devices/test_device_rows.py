"""What `coach ps --devices` says of each GPU of the machine, with those of a stand-in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.cli.main import invoke
from coach.platforms.local import devices
from coach.platforms.local.devices import Lease
from tests.gpus import Gpus, gpus


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """A GPU that is free, one that computes, and one that has fallen off the bus."""
    with gpus(tmp_path, ["NVIDIA_H100"] * 3, monkeypatch) as found:
        found.busy, found.used = {found.uuids[1]: 34}, {found.uuids[1]: 20480}
        found.states = {found.uuids[2]: "lost"}
        found.write()
        yield found


def test_each_gpu_has_a_row_with_its_use_and_what_is_wrong(three: Gpus, capsys: pytest.CaptureFixture[str]) -> None:
    three.processes = [(three.uuids[1], os.getpid())]
    three.write()
    assert invoke(["ps", "--devices", "-o", "json"]) == 0
    free, busy, lost = json.loads(capsys.readouterr().out)
    assert (free["uuid"], free["memory"], free["used"], free["busy"], free["who"]) == (three.uuids[0], 80, 0, 0, "")
    assert (busy["used"], busy["busy"], busy["watts"], busy["pid"]) == (20.0, 34.0, 300.0, os.getpid())
    assert busy["who"] and busy["user"] and busy["since"] > 0
    assert (lost["index"], lost["problem"]) == (2, "GPU is lost")
    assert invoke(["ps", "--devices"]) == 0
    out = capsys.readouterr().out
    assert "free" in out and "34 %" in out and "GPU is lost" in out


def test_a_gpu_that_a_job_has_is_its_own_before_anything_computes_there(
    three: Gpus, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = Lease.take(devices.all_devices()[0])
    assert lease is not None
    assert invoke(["ps", "--devices", "-o", "json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["who"], row["pid"]) == ("a job of Coach", os.getpid())
    lease.close()


def test_a_machine_without_gpus_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with gpus(tmp_path, [], monkeypatch):
        assert invoke(["ps", "--devices"]) == 0
    assert "coach doctor" in capsys.readouterr().out

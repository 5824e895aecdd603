"""Reading ahead in other processes changes nothing but the time, and leaves no process behind."""

import os
import signal
from pathlib import Path

import pytest

from tests.functions.hosting import Gang, eventually, is_alive
from tests.functions.pytorch.test_training import epoch

pytestmark = pytest.mark.pytorch

#: Each sample is made anew with random numbers of each kind; who reads it is written down.
RANDOM = """
    import os
    import random

    import numpy as np
    import torch
    from torch import nn

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, number):
            open(os.path.join(FOLDER, str(os.getpid())), "a").write(f"{number} ")
            noise = torch.rand(4) + float(np.random.rand()) + random.random()
            return noise + number % 5, number % 5

    def data(split):
        return Noisy(320 if split == "train" else 50)

    def net():
        return nn.Linear(4, 5)

    loss = nn.CrossEntropyLoss()
"""


def text(folder: Path) -> str:
    """The model file; what it reads goes to a folder."""
    folder.mkdir()
    return RANDOM.replace("FOLDER", repr(str(folder)))


def message(folder: Path, read: Path, after: dict | None = None, **changes: object) -> dict:
    return epoch(folder, after, **{"text": text(read), "data": {"format": "model"}, "samples": 320, **changes})


@pytest.mark.parametrize("workers", [1, 2])
def test_who_reads_changes_nothing(gang: Gang, tmp_path: Path, workers: int) -> None:
    """Not even where samples are random: what is drawn for one depends on its place in the job alone."""
    ends = {}
    for name, readers, count in (("one", 0, 1), ("plain", 0, workers), ("ahead", 3, workers)):
        gang.fresh_group()
        given = {"readers": readers, "micro_batch": 5}
        first = gang.epoch(count, 0, **message(tmp_path, tmp_path / name, **given))
        again = {**given, "text": RANDOM.replace("FOLDER", repr(str(tmp_path / name))), "samples": 96}
        second = gang.epoch(count, 0, **epoch(tmp_path, first, **{"data": {"format": "model"}, **again}))
        ends[name] = [each[key] for each in (first, second) for key in ("train_loss", "loss", "accuracy")]
        assert first["processes"] == [], "reading processes are Coach's own"
        pids = {int(each.name) for each in (tmp_path / name).iterdir()}
        # A worker itself reads the first samples, with which it measures the loss.
        assert len(pids) == count * (1 + readers)
    assert ends["ahead"] == ends["plain"]
    assert ends["plain"] == pytest.approx(ends["one"], rel=1e-5)


def test_an_epoch_without_an_evaluation_is_followed_by_another(gang: Gang, tmp_path: Path) -> None:
    given = {"readers": 2, "micro_batch": 9, "samples": 160, "evaluate": False}
    first = gang.epoch(2, 0, **message(tmp_path, tmp_path / "read", **given))
    again = {"data": {"format": "model"}, "text": RANDOM.replace("FOLDER", repr(str(tmp_path / "read")))}
    second = gang.epoch(2, 0, **epoch(tmp_path, first, **again, **given))
    gang.fresh_group()
    plain = gang.epoch(2, 0, **epoch(tmp_path, **again, **{**given, "readers": 0, "samples": 320}))
    both = (first["train_loss"] + second["train_loss"]) / 2
    assert second["position"] == 320 and both == pytest.approx(plain["train_loss"], rel=1e-6)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_reading_processes_end_with_their_worker(gang: Gang, tmp_path: Path, how: str) -> None:
    gang.epoch(1, 0, **message(tmp_path, tmp_path / "read", readers=2))
    pids = [int(each.name) for each in (tmp_path / "read").iterdir()]
    worker = gang.worker.health()["child_pid"]
    assert worker in pids and len(pids) == 3 and all(map(is_alive, pids))
    if how == "stop":
        gang.stop()
    else:
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("readers", [0, 2])
def test_what_reading_raises_is_said_with_its_line(gang: Gang, tmp_path: Path, readers: int) -> None:
    broken = text(tmp_path / "read").replace("noise =", "assert number != 300, 'no sample 300'\n            noise =")
    wanted = epoch(tmp_path, text=broken, data={"format": "model"}, samples=320, readers=readers)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid", error
    assert "model.py line " in error["message"] and error["message"].endswith("no sample 300"), error


def test_a_reading_process_that_is_killed_ends_the_epoch(gang: Gang, tmp_path: Path) -> None:
    kills = text(tmp_path / "read").replace(
        "noise =", "os.kill(os.getpid(), 9) if number == 300 else None\n            noise ="
    )
    wanted = epoch(tmp_path, text=kills, data={"format": "model"}, samples=320, readers=2)
    gang.start(1, 0, **wanted)
    answer = gang.worker.wait(wanted["epoch"])
    assert answer["state"] == "failed" and "DataLoader worker" in answer["error"]["message"], answer
    eventually(lambda: not any(is_alive(int(each.name)) for each in (tmp_path / "read").iterdir()))


def test_an_epoch_that_ends_early_drops_what_was_read_ahead(gang: Gang, tmp_path: Path) -> None:
    slow = text(tmp_path / "read").replace("noise =", "__import__('time').sleep(0.002)\n            noise =")
    given = {"text": slow, "data": {"format": "model"}, "samples": 96_000, "readers": 2}
    first = gang.epoch(1, 0, **epoch(tmp_path, **given, seconds=0.3))
    assert 32 < first["samples"] < 96_000
    second = gang.epoch(1, 0, **epoch(tmp_path, first, **{**given, "samples": 64}))
    gang.fresh_group()
    plain = {**given, "readers": 0, "text": RANDOM.replace("FOLDER", repr(str(tmp_path / "read")))}
    again = gang.epoch(1, 0, **epoch(tmp_path, **{**plain, "samples": first["samples"]}))
    then = gang.epoch(1, 0, **epoch(tmp_path, again, **{**plain, "samples": 64}))
    for key in ("train_loss", "loss"):
        assert (again[key], then[key]) == (first[key], second[key])

"""Checkpoints and data in an object store: a real S3 server, killed and stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from training import checkpoint, storage
from training.data import formats
from training.errors import TrainingError

from tests.functions.test_checkpoint import STATE
from tests.object_store import ObjectStore, object_store

pytestmark = [pytest.mark.processes, pytest.mark.full, pytest.mark.timeout(300)]

#: Saves a checkpoint of so many MB at a URI, again and again.
SAVES = """
import os, sys
from training import storage
block = os.urandom(1 << 20)
while True:
    with storage.writing(sys.argv[1]) as file:
        for _ in range(int(sys.argv[2])):
            file.write(block)
    print("saved", flush=True)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as started:
        yield started


def refused(uri: str, missing: str = "CheckpointMissing") -> TrainingError:
    with pytest.raises(TrainingError) as caught:
        storage.read(uri, missing)
    return caught.value


def test_what_was_saved_is_loaded_and_removed(store: ObjectStore) -> None:
    uri = "s3://bucket/a job/e 1#2?.ckpt"
    checkpoint.save(uri, STATE, checkpoint.write)
    loaded = checkpoint.load(uri, checkpoint.read)
    assert (loaded.settings, loaded.position, loaded.epoch, loaded.seed) == (STATE.settings, 640, "e7", 3)
    for name, array in STATE.arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array)
    assert store.objects() == ["a job/e 1#2?.ckpt"]
    storage.remove(uri)
    storage.remove(uri)
    assert store.objects() == [] and refused(uri).reason == "CheckpointMissing"


def test_a_data_set_is_read_from_a_folder(store: ObjectStore) -> None:
    with storage.writing("s3://bucket/data/d.npz") as file:
        np.savez(file, x_train=np.eye(4), y_train=range(4), x_test=np.eye(4), y_test=range(4))
    assert len(formats.load("s3://bucket/data/d.npz", "npz").train) == 4
    assert refused("s3://bucket/data/none.npz", "DataMissing").reason == "DataMissing"


def test_a_store_that_refuses_is_an_error_in_one_line(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    error = refused("s3://bucket/a.ckpt")
    assert error.reason == "StorageFailed" and "\n" not in error.message, error.message


def test_what_is_large_goes_in_parts_and_a_server_that_restarts_meanwhile_costs_nothing(store: ObjectStore) -> None:
    content = np.random.default_rng(1).bytes(5 * storage.PART_BYTES + 12345)
    failed = list[BaseException]()

    def save() -> None:
        try:
            with storage.writing("s3://bucket/large.ckpt") as file:
                file.write(content)
        except BaseException as error:
            failed.append(error)

    store.kill()
    saving = threading.Thread(target=save)
    saving.start()
    time.sleep(0.3)  # its first request is refused, or not yet sent
    store.start()
    saving.join(120)
    assert not failed and not saving.is_alive(), failed
    assert storage.read("s3://bucket/large.ckpt", "CheckpointMissing") == content
    assert store.log().count("| PUT | /bucket/large.ckpt") >= 6 and store.parts() == 0


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2, 0.5])
def test_a_writer_that_is_killed_leaves_a_whole_object_or_none(store: ObjectStore, seconds: float) -> None:
    name = f"killed-{seconds}.ckpt"
    command = [sys.executable, "-c", SAVES, f"s3://bucket/{name}", "64"]
    environment = {**store.environment, "PYTHONPATH": str(Path(storage.__file__).parents[1])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as writer:
        until_a_part(store)
        time.sleep(seconds)
        writer.kill()
    whole = 64 << 20
    sizes = [(store.bucket / key).stat().st_size for key in store.objects() if key == name]
    assert sizes in ([], [whole])
    content = storage.read(f"s3://bucket/{name}", "CheckpointMissing") if sizes else b""
    assert len(set(content[i << 20 : (i + 1) << 20] for i in range(64 if content else 0))) <= 1, "one block, 64 times"


def until_a_part(store: ObjectStore) -> None:
    deadline = time.monotonic() + 60
    while not store.parts():
        assert time.monotonic() < deadline, store.log()
        time.sleep(0.01)

"""A checkpoint is read back as it was written, or refused."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from training import checkpoint
from training.errors import TrainingError

STATE = checkpoint.Checkpoint(
    arrays={
        "weights/0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "weights/0.bias": np.zeros(0, np.float32),
        "optimizer/0.weight/0": np.ones((2, 3), np.float16),
        "weights/scale": np.float32(3) * np.ones((), np.float32),
    },
    settings={"updates": 5, "counts": {"0": 5}, "schedule": None},
    position=640,
    epoch="e7",
    seed=3,
)


def encoded() -> bytes:
    buffer = io.BytesIO()
    checkpoint.write(buffer, STATE)
    return buffer.getvalue()


def reason(uri: object) -> str:
    with pytest.raises(TrainingError) as caught:
        checkpoint.load(str(uri), checkpoint.read)
    return caught.value.reason


@pytest.mark.parametrize(("umask", "folder", "file"), [(0, 0o700, 0o600), (0, 0o755, 0o644), (0o027, 0o755, 0o640)])
def test_who_may_not_read_its_folder_may_not_read_a_checkpoint(
    tmp_path: Path, umask: int, folder: int, file: int
) -> None:
    tmp_path.chmod(folder)
    before = os.umask(umask)
    try:
        checkpoint.save(str(tmp_path / "a.ckpt"), STATE, checkpoint.write)
    finally:
        os.umask(before)
    assert (tmp_path / "a.ckpt").stat().st_mode & 0o777 == file


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_was_saved_is_loaded(tmp_path: Path, scheme: str) -> None:
    uri = f"{scheme}{tmp_path}/a/b/weights.npz"
    checkpoint.save(uri, STATE, checkpoint.write)
    loaded = checkpoint.load(uri, checkpoint.read)
    assert (loaded.settings, loaded.position, loaded.epoch, loaded.seed) == (STATE.settings, 640, "e7", 3)
    assert loaded.arrays.keys() == STATE.arrays.keys()
    for name, array in STATE.arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array)
        assert loaded.arrays[name].dtype == array.dtype


def test_numpy_alone_reads_the_weights(tmp_path: Path) -> None:
    checkpoint.save(str(tmp_path / "w.npz"), STATE, checkpoint.write)
    with np.load(tmp_path / "w.npz") as archive:
        np.testing.assert_array_equal(archive["weights/0.weight"], STATE.arrays["weights/0.weight"])


def test_a_cut_checkpoint_is_invalid_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = encoded()
    for length in range(0, len(whole), 7):
        (tmp_path / "w.npz").write_bytes(whole[:length])
        assert reason(tmp_path / "w.npz") == "CheckpointInvalid"


def test_a_changed_value_is_noticed_even_with_a_fitting_zip(tmp_path: Path) -> None:
    source = zipfile.ZipFile(io.BytesIO(encoded()))
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content[:-1] + b"\x01" if name == "weights/0.weight.npy" else content)
    assert reason(tmp_path / "w.npz") == "CheckpointInvalid"


def test_an_array_more_or_less_is_noticed(tmp_path: Path) -> None:
    source = zipfile.ZipFile(io.BytesIO(encoded()))
    for left_out, added in (("weights/0.weight.npy", None), (None, "weights/other.npy")):
        with zipfile.ZipFile(tmp_path / "w.npz", "w") as target:
            for name in source.namelist():
                if name != left_out:
                    target.writestr(name, source.read(name))
            if added:
                target.writestr(added, source.read("weights/0.weight.npy"))
        assert reason(tmp_path / "w.npz") == "CheckpointInvalid"


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    whole = encoded()
    for at in range(len(whole)):
        (tmp_path / "w.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        try:
            loaded = checkpoint.load(str(tmp_path / "w.npz"), checkpoint.read)
        except TrainingError as error:
            assert error.reason == "CheckpointInvalid"
            continue
        # Dates, rights and the like, which are not read.
        assert (loaded.settings, loaded.position, loaded.epoch, loaded.seed) == (
            STATE.settings,
            640,
            "e7",
            3,
        )
        assert loaded.arrays.keys() == STATE.arrays.keys()
        for name, array in STATE.arrays.items():
            np.testing.assert_array_equal(loaded.arrays[name], array)


def test_the_same_state_gives_the_same_bytes() -> None:
    assert encoded() == encoded()


def test_pickled_arrays_are_not_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return os.system, (f"touch {tmp_path}/exploded",)

    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()]), allow_pickle=True)
    source = zipfile.ZipFile(io.BytesIO(encoded()))
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as target:
        for name in source.namelist():
            target.writestr(name, buffer.getvalue() if name == "weights/0.weight.npy" else source.read(name))
    assert reason(tmp_path / "w.npz") == "CheckpointInvalid"
    assert not (tmp_path / "exploded").exists()


def test_no_valid_checkpoint_differs_from_no_checkpoint(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    assert reason(tmp_path / "other.npz") == "CheckpointInvalid"
    assert reason(tmp_path / "nothing.npz") == "CheckpointMissing"
    assert reason(tmp_path) == "CheckpointMissing"


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.npz"
    checkpoint.save(str(path), STATE, checkpoint.write)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError) as caught:
        checkpoint.save(str(path), STATE, checkpoint.write)
    assert caught.value.reason == "StorageFailed" and "No space left" in caught.value.message
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]

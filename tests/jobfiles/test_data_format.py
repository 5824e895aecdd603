"""Data that cannot be of the format that its job file says, whatever stands at its path."""

import os
from pathlib import Path

import pytest

from coach.core.spec.training import DataFormat
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


NPZ_RIGHT = "NumPy's archive, as numpy.savez writes it, with x_train, y_train, x_test and y_test"
IDX_RIGHT = "a folder with MNIST's four IDX files, compressed or not"


@pytest.mark.parametrize(
    ("of", "uri", "message"),
    [
        (IDX, "a.idx", f"not a folder (a.idx is a file) - {IDX_RIGHT}"),
        (NPZ, "folder", f"not a file (folder is a folder) - {NPZ_RIGHT}"),
    ],
)
def test_a_folder_where_a_file_is_meant_is_a_mistake_and_the_other_way_round(
    tmp_path: Path, of: DataFormat, uri: str, message: str
) -> None:
    (tmp_path / "a.idx").touch()
    (tmp_path / "folder").mkdir()
    file = job(tmp_path, f"format: {of}, uri: {uri}")
    column = GOOD.splitlines()[6].index("format") + len(f"format: {of}, uri: ") + 1
    assert load_mistakes(file) == [f"{file}:7:{column} spec.data.uri: {message}"]


def test_a_remote_uri_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.jobfiles.load._not_so_stored", lambda *_: pytest.fail("looked at"))
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


def test_symlinks_that_go_round_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    [message] = load_mistakes(job(tmp_path, "format: npz, uri: loop"))
    assert "spec.data.uri: not a path" in message


def test_the_hash_of_a_large_file_is_left_to_the_functions(tmp_path: Path) -> None:
    path = datasets.npz(tmp_path / "a.npz", samples=MAX_HASHED_BYTES // 16)
    assert path.stat().st_size > MAX_HASHED_BYTES
    data = f"format: npz, uri: a.npz, sha256: '{'0' * 64}'"
    assert load_jobs([job(tmp_path, data)])[0].spec.spec.data.sha256 == "0" * 64

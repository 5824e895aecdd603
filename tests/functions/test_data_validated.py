"""The formats of the job file are those that the functions read, from data sets of each."""

from pathlib import Path

import pytest
from training import request
from training.data import formats
from training.errors import TrainingError

from coach.core.spec.training import DataFormat
from tests.jobfiles import datasets

MAKERS = {
    "digits": (datasets.digits, DataFormat.DIGITS_JSON),
    "idx": (datasets.idx, DataFormat.IDX),
    "packed": (lambda path: datasets.idx(path, packed=True), DataFormat.IDX),
    "cifar10": (datasets.cifar10, DataFormat.CIFAR10),
    "c.tar": (lambda path: datasets.cifar10_archive(path, "w"), DataFormat.CIFAR10),
    "c.tar.gz": (datasets.cifar10_archive, DataFormat.CIFAR10),
    "c.tgz": (lambda path: datasets.cifar10_archive(path, "w:bz2"), DataFormat.CIFAR10),
    "a.npz": (datasets.npz, DataFormat.NPZ),
}


def read(path: Path, of: DataFormat) -> bool:
    """Whether the functions read it."""
    try:
        formats.load(str(path), of.value)
    except TrainingError:
        return False
    return True


@pytest.mark.parametrize("name", MAKERS)
def test_data_is_read_and_without_a_file_it_is_not(tmp_path: Path, name: str) -> None:
    make, of = MAKERS[name]
    path = make(tmp_path / name)
    assert read(path, of)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        content = file.read_bytes()
        file.unlink()
        assert not read(path, of)
        file.write_bytes(content)


def test_every_format_of_the_job_file_is_one_that_the_functions_read() -> None:
    named = {of.value for of in DataFormat}
    assert named - {"custom"} == set(formats.READERS), "READERS of functions/training/data/formats.py"
    assert named <= {*formats.READERS, *request.OWN_FORMATS}, "OWN_FORMATS of functions/training/request.py"
    assert named - {"custom", "digits8x8"} == {of.value for _, of in MAKERS.values()}, "MAKERS of this test: a data set"

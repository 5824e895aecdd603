"""`coach validate` refuses no data that the functions read, and finds what is refused for its form."""

import random
from pathlib import Path

import pytest
from training.data import formats
from training.errors import TrainingError

from coach.core.spec.training import DataFormat
from coach.jobfiles.data_format import mismatch
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
def test_what_the_functions_read_is_not_refused_even_after_small_changes(tmp_path: Path, name: str) -> None:
    make, of = MAKERS[name]
    path = make(tmp_path / name)
    assert read(path, of) and mismatch(path, of) is None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    chance = random.Random(name)
    refused = 0
    for _ in range(60):
        file = chance.choice(files)
        whole = file.read_bytes()
        changed = bytearray(whole)
        where = chance.choice([chance.randrange(min(8, len(whole))), chance.randrange(len(whole))])
        match chance.randrange(3):
            case 0:
                changed[where] = chance.randrange(256)
            case 1:
                del changed[where:]
            case 2:
                changed[where:where] = bytes(chance.choices(b" \n\0{}\xff", k=chance.choice((1, 3, 3073))))
        file.write_bytes(changed)
        found = mismatch(path, of)
        refused += found is not None
        assert not (found and read(path, of)), f"{file.name}, changed at byte {where}: {found}"
        file.write_bytes(whole)
    assert refused > 0


def test_every_format_of_the_job_file_is_one_that_the_functions_read() -> None:
    assert {of.value for of in DataFormat} - {"custom"} == set(formats.READERS)

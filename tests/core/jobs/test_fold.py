"""What an epoch is, where it is not the whole data: its first report decides, for the rest of the job."""

from dataclasses import replace
from typing import Any

import pytest

from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.fold import first_size
from coach.core.spec.job import TrainingJob
from tests.core.lifecycle.faulty_cluster import spec

#: 1,280 samples in 10 s, 256 of them in the 6 s of the warm-up: 256 samples/s.
REPORT = EpochReport(1280, 60_000, 0.5, None, "w", 10.0, 1.0, warm_up_samples=256, warm_up_seconds=6.0)


@pytest.mark.parametrize(
    ("epoch", "size"),
    [
        ({"samples": 5000}, 5056),  # 79 batches of 64
        ({"samples": 64}, 64),
        ({"samples": 10**9}, 60_000),
        ({"fraction": 0.1}, 6016),
        ({"fraction": 1.0}, 60_000),
        ({"fraction": 1e-9}, 64),
        ({"time": "1m"}, 15_360),
        ({"time": "1ms"}, 64),
        ({"time": "1h"}, 60_000),
    ],
)
def test_an_epoch_has_whole_batches_and_no_more_than_the_data(epoch: dict[str, Any], size: int) -> None:
    assert first_size(TrainingJob.from_json(spec(epoch=epoch)).spec, REPORT) == size


def test_a_report_of_the_warm_up_alone_is_measured_by_it() -> None:
    job = TrainingJob.from_json(spec(epoch={"time": "10s"})).spec
    assert first_size(job, replace(REPORT, samples=256, train_seconds=6.0)) == 448

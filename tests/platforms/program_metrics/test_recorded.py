"""What transformers 5.24, Lightning 2 and Keras 3 printed, wrote and sent when examples/programs ran, read as reports.

For the requests, the trainer's shortest interval was 0.15 s in place of 5 s.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.collector import Lines
from coach.platforms.program_metrics.files import Followed
from coach.platforms.program_metrics.reader import Reader
from coach.platforms.program_metrics.status import metrics_of
from tests.platforms.program_metrics.test_files import RECORDED

Curve = list[tuple[float | None, float]]
TRANSFORMERS = [0.4232, 0.3642, 0.3227, 0.3105, 0.3039, 0.3013]
LIGHTNING = [0.3925, 0.3385, 0.3035]
KERAS = [0.4420, 0.3626, 0.3289, 0.3018]


def curve(reports: list[ProgramReport | None], metric: str) -> Curve:
    found = [(one.epoch, one.values[metric]) for one in reports if one is not None and metric in one.values]
    return [one for at, one in enumerate(found) if one not in found[:at]]


def printed(name: str, metric: str) -> Curve:
    reader, lines = Reader(Wanted(metric)), Lines()
    return curve([one for line in lines.more((RECORDED / name).read_bytes()) for one in reader.line(line)], metric)


def written(folder: Path, metric: str, text: str) -> Curve:
    source = MetricSource.read(metric, text)
    reader, files = Reader(Wanted(metric, (source,))), Followed(source, folder)
    name = "trainer_state.json" if source.kind == "trainer-state" else text.partition(":")[2].partition("#")[0]
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes((RECORDED / name).read_bytes())
    return curve([reader.record(source.kind, record, source.where) for record in files.records()], metric)


def test_transformers_prints_its_evaluations() -> None:
    found = printed("transformers.out", "eval_loss")
    assert found == [(n + 1, pytest.approx(loss)) for n, loss in enumerate(TRANSFORMERS)]


def test_transformers_sends_each_evaluation_with_many_a_request() -> None:
    reader = Reader(Wanted("eval_loss"))
    requests = [json.loads(line) for line in (RECORDED / "transformers-requests.jsonl").read_text().splitlines()]
    reports = [reader.record("status", metrics_of(request) or {}) for request in requests]
    counted = [one for one in reports if one is not None and "eval_loss" in one.values]
    assert len(counted) == 6 < len(requests)
    assert [(one.epoch, one.values["eval_loss"]) for one in counted] == [
        (n + 1, pytest.approx(loss, abs=1e-4)) for n, loss in enumerate(TRANSFORMERS)
    ]


def test_transformers_writes_its_state(tmp_path: Path) -> None:
    found = written(tmp_path, "eval_loss", "trainer-state:.")
    assert found == [(n + 1, pytest.approx(loss, abs=1e-4)) for n, loss in enumerate(TRANSFORMERS)]


def test_lightning_writes_its_validations_between_its_steps(tmp_path: Path) -> None:
    found = written(tmp_path, "val_loss", "csv:lightning.csv")
    assert found[:3] == [(n, pytest.approx(loss, abs=1e-4)) for n, loss in enumerate(LIGHTNING)]
    assert written(tmp_path / "again", "f1", "csv:lightning.csv#val_accuracy")[0] == (
        0,
        pytest.approx(0.88972),
    )


def test_keras_prints_and_writes_each_epoch(tmp_path: Path) -> None:
    """It counts from 1 on where it prints, and from 0 on where it writes."""
    assert printed("keras.out", "val_loss") == [(n + 1, loss) for n, loss in enumerate(KERAS)]
    found = written(tmp_path, "val_loss", "csv:keras.csv")
    assert found[:4] == [(n, pytest.approx(loss, abs=1e-4)) for n, loss in enumerate(KERAS)]

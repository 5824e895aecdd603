"""What counts as a report: in lines, in records, and where several sources say the same."""

from __future__ import annotations

import math

import pytest

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.reader import Reader


def reader(metric: str = "eval_loss", samples: int | None = None, **metrics: str) -> Reader:
    sources = tuple(MetricSource.read(name, text) for name, text in metrics.items())
    return Reader(Wanted(metric, sources, samples))


def said(found: Reader, line: str) -> ProgramReport | None:
    """What a line says last."""
    return ([None, *found.line(line)])[-1]


@pytest.mark.parametrize(
    ("line", "values", "epoch"),
    [
        ("eval_loss: 0.31", {"eval_loss": 0.31}, None),
        ("Epoch 3/10 - eval loss = 3.1e-1", {"eval_loss": 0.31}, 3),
        ("Epoch: [2][ 90/100] eval_loss 0.31", {"eval_loss": 0.31}, 2),
        ("best epoch 7 eval_loss 0.31", {"eval_loss": 0.31}, None),
        ('{"eval_loss": 0.31, "epoch": 2, "done": true}', {"eval_loss": 0.31}, 2),
        ('INFO x: {"metrics": {"eval_loss": "0.31"}}', {"eval_loss": 0.31}, None),
        (
            "{'eval_loss': np.float64(0.31), 'lr': '5e-05', 'epoch': 1.5}",
            {"eval_loss": 0.31, "lr": 5e-5},
            1.5,
        ),
        (
            " 50%|█████ | 5/10 {'eval_loss': 0.31, 'current_epoch': 0.5}",
            {"eval_loss": 0.31},
            0.5,
        ),
        ('{"eval/loss": 0.31}', {"eval_loss": 0.31}, None),
        ("epoch 3: {'eval_loss': 0.31, 'f1': 0.9}", {"eval_loss": 0.31, "f1": 0.9}, 3),
    ],
)
def test_what_programs_print_is_found(line: str, values: dict[str, float], epoch: float | None) -> None:
    report = said(reader(), line)
    assert report is not None and (report.values, report.epoch) == (values, epoch)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "{" * 4000,
        "[" * 5000 + "}",
        '{"a":' * 1500 + "1" + "}" * 1500,
        '{"eval_loss": [1, 2], "eval": null}',
        '{"eval_loss": true}',
        "{'eval_loss': __import__('os').system('false')}",
        "x" * 70000 + " eval_loss: 0.31",
        '{"' + "x" * 70 + '": 1}',
    ],
)
def test_what_reports_nothing_is_passed_over(line: str) -> None:
    assert said(reader(), line) is None


def test_a_huge_number_is_one_that_ends_the_job() -> None:
    report = said(reader(), '{"eval_loss": 1' + "0" * 400 + "}")
    assert report is None or not math.isfinite(report.values["eval_loss"])
    report = reader().record("status", {"eval_loss": float("nan")})
    assert report is not None and math.isnan(report.values["eval_loss"])


def test_an_epoch_in_a_line_of_its_own_is_that_of_the_lines_behind_it() -> None:
    found = reader("val_loss")
    assert said(found, "Epoch 4/10") is None
    report = said(found, "30/30 ━━━ 1s - loss: 0.5 - val_loss: 0.4")
    assert report is not None and (report.values, report.epoch) == ({"val_loss": 0.4}, 4)


def test_samples_are_epochs_where_their_number_in_a_pass_is_known() -> None:
    line = '{"eval_loss": 0.3, "samples": 30000}'
    report, unknown = said(reader(samples=60000), line), said(reader(), line)
    assert report is not None and report.epoch == 0.5
    assert unknown is not None and unknown.epoch is None


def test_a_named_source_is_the_only_one() -> None:
    found = reader(eval_loss="loss was (\\S+)", f1="lines#val/f1", epoch="lines#pass")
    assert said(found, "eval_loss: 9") is None
    assert said(found, "loss was 0.3") == ProgramReport({"eval_loss": 0.3}, None)
    report = said(found, '{"eval_loss": 9, "val/f1": 0.5, "pass": 2, "epoch": 7}')
    assert report is not None and report.values["f1"] == 0.5 and report.epoch == 2
    assert "eval_loss" not in report.values
    files = reader(eval_loss="csv:a.csv#val_loss")
    assert files.record("status", {"eval_loss": 1}) is None
    assert files.record("csv", {"val_loss": 1}, "b.csv") == ProgramReport({"val_loss": 1.0}, None, "csv")
    report = files.record("csv", {"val_loss": 1}, "a.csv")
    assert report is not None and report.values["eval_loss"] == 1.0


def test_a_metric_that_is_sent_written_and_printed_is_one_report() -> None:
    found = reader()
    assert said(found, "eval_loss: 0.3") is not None
    assert found.record("status", {"eval_loss": 0.3, "current_epoch": 1}) is not None
    assert said(found, "eval_loss: 0.3") is None, "records are preferred to other lines"
    report = said(found, '{"eval_loss": 0.3, "epoch": 1}')
    assert report is None, "the first kind of record is kept"


def test_a_status_repeats_what_is_known_and_that_is_no_report() -> None:
    """transformers sends the newest value that it has, every five seconds."""
    found = reader()

    def sent(**metrics: float) -> dict[str, float]:
        report = found.record("status", metrics)
        return {} if report is None else dict(report.values)

    assert sent(eval_loss=0.3, eval_runtime=1.5, current_epoch=1.0)["eval_loss"] == 0.3
    assert "eval_loss" not in sent(eval_loss=0.3, eval_runtime=1.5, current_epoch=1.4)
    assert sent(eval_loss=0.3, eval_runtime=1.6, current_epoch=2.0)["eval_loss"] == 0.3, "evaluated anew"
    assert sent(eval_loss=0.2, eval_runtime=1.6, current_epoch=3.0)["eval_loss"] == 0.2


def test_what_a_program_says_it_reports_counts_each_time() -> None:
    found = reader()
    for _ in range(2):
        assert found.record("report", {"eval_loss": 0.3}) == ProgramReport({"eval_loss": 0.3}, None, "report")


def test_a_report_has_a_bounded_number_of_metrics() -> None:
    report = reader().record("status", {f"m{n}": n for n in range(10_000)} | {"eval_loss": 1})
    assert report is None or len(report.values) <= 64
    report = reader().record("status", {"eval_loss": 1} | {f"m{n}": n for n in range(10_000)})
    assert report is not None and report.values["eval_loss"] == 1 and len(report.values) <= 64

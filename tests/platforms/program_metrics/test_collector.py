"""What a program prints in one go, and in many."""

from __future__ import annotations

import json
import os
from pathlib import Path

from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.collector import Collector


def collected(folder: Path, *pieces: str) -> tuple[list[ProgramReport], list[str]]:
    """The reports of a program that prints these pieces, each read at once, and the lines of its log."""
    reports: list[ProgramReport] = []
    lines: list[str] = []
    collector = Collector(Wanted("loss"), folder, lines.append, reports.append)
    for piece in pieces:
        printed, writer = os.pipe()
        over, ends = os.pipe()
        os.write(writer, piece.encode())
        os.close(writer)
        os.close(ends)
        collector.run(printed, over)
    return reports, lines


def test_a_flood_of_lines_is_one_report_of_each_epoch_and_all_are_logged(tmp_path: Path) -> None:
    printed = [json.dumps({"step": n, "loss": 1 / n, "epoch": n / 500}) for n in range(1, 1001)]
    reports, lines = collected(tmp_path, "".join(f"{line}\n" for line in printed))
    assert [(one.values["step"], one.epoch) for one in reports] == [(499, 499 / 500), (999, 999 / 500), (1000, 2)]
    assert not reports[-1].guessed
    assert lines == printed


def test_metrics_of_several_lines_are_in_one_report_and_a_step_back_in_epochs_begins_another(
    tmp_path: Path,
) -> None:
    printed = ['{"lr": 0.1, "epoch": 1}', '{"loss": 0.5, "epoch": 2}', '{"loss": 0.9, "epoch": 1}']
    reports, _ = collected(tmp_path, "\n".join(printed) + "\n", '{"loss": 0.4, "epoch": 2}\n')
    assert [(report.values, report.epoch) for report in reports] == [
        ({"lr": 0.1, "loss": 0.5}, 2),
        ({"loss": 0.9}, 1),
        ({"loss": 0.4}, 2),
    ]


def test_what_is_a_guess_stays_one_where_other_metrics_follow_it_at_once(tmp_path: Path) -> None:
    [report], _ = collected(tmp_path, 'loss: 0.1\n{"lr": 0.5}\n')
    assert report.values == {"loss": 0.1, "lr": 0.5} and report.guessed

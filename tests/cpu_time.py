"""A pytest plugin: the CPU seconds that each test takes, with the processes it started and waited for.

`pytest -p tests.cpu_time --cpu-times FILE` writes a CSV of test, outcome, CPU seconds and wall seconds, the most CPU
first. CPU seconds mean something on a busy machine too, where wall seconds do not.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Generator
from pathlib import Path

import pytest


def cpu() -> float:
    """CPU seconds of this process and of those it has waited for, user and system."""
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=Path, help="write each test's CPU seconds to this CSV file")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-times"):
        config.pluginmanager.register(CpuTimes(path), "cpu-times")


class CpuTimes:
    """Measures where tests run, adds up where they are reported: the same process, but with pytest-xdist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = cpu()
        self.rows: dict[str, tuple[str, float, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu()
        report.cpu_seconds, self.last = now - self.last, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, used, wall = self.rows.get(report.nodeid, ("passed", 0.0, 0.0))
        if report.outcome != "passed":
            outcome = report.outcome
        self.rows[report.nodeid] = (outcome, used + report.cpu_seconds, wall + report.duration)

    def pytest_sessionfinish(self) -> None:
        with self.path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["test", "outcome", "cpu_seconds", "wall_seconds"])
            for test, (outcome, used, wall) in sorted(self.rows.items(), key=lambda row: -row[1][1]):
                table.writerow([test, outcome, f"{used:.3f}", f"{wall:.3f}"])

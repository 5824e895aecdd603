"""Writes the thesis's 24 configurations (its table 1) as job files, converted from the thesis's own.

    python -m coach_research.thesis.job_files [SOURCE [TARGET]]

model {LeNet, ResNet18} x jobs at once {1, 2, 3} x allocation {dynamic, 2x2} x scheduler {gang-like, default}. The
thesis chose the scheduler when it set up its cluster; here it is a label of the job that experiments read.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from coach.jobfiles.dump import to_yaml_file
from coach_research.thesis.convert import convert

SOURCE = Path("tests/data/thesis/jobs")
TARGET = Path("jobs/thesis")
SCHEDULER_LABEL = "coach.dev/scheduler"

_NETWORKS = (("lenet", "LeNet"), ("resnet18", "Cifar10"))
_COUNTS = ((1, "single"), (2, "two"), (3, "three"))
_ALLOCATIONS = (("dynamic", ""), ("static", "StaticTwo"))
_SCHEDULERS = ("gang", "default")
_LOSSES = "The target is that of the thesis's job files; its text says 0.83 for LeNet where they say 0.85."


def configurations(source: Path = SOURCE) -> dict[str, str]:
    """The text of each configuration's job file, by the file's name. Raises JobFileError."""
    files = {}
    for (model, folder), (count, word), (kind, ending), scheduler in product(
        _NETWORKS, _COUNTS, _ALLOCATIONS, _SCHEDULERS
    ):
        name = f"{model}-{count}-{kind}-{scheduler}"
        origin = source / folder / f"{word}Tenant83{ending}.json"
        jobs = convert(
            origin,
            error_files=source / "errorFiles",
            models="../../functions/models",
            data="../../.data",
            name=name,
            labels={"coach.dev/experiment": "thesis-table-1", SCHEDULER_LABEL: scheduler},
        )
        head = (
            f"Table 1 of the thesis: {model}, {count} job{'s' * (count > 1)}, {kind}, {scheduler} scheduler.\n"
            f"{_LOSSES}\nWritten by: python -m coach_research.thesis.job_files\n"
        )
        files[f"{name}.yaml"] = to_yaml_file([job.to_yaml() for job in jobs], head)
    return files


def main(arguments: list[str]) -> None:
    """Write the files into the target folder."""
    source = Path(arguments[0]) if arguments else SOURCE
    target = Path(arguments[1]) if len(arguments) > 1 else TARGET
    target.mkdir(parents=True, exist_ok=True)
    for name, text in configurations(source).items():
        (target / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

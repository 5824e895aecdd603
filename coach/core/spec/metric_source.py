"""Where a metric of a program comes from, as a job file says it. Nothing here needs pydantic."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The metric that is the learning curve's axis.
EPOCH = "epoch"
#: The kinds of files that a metric may be read from, and what is named of each; `coach.platforms.program_metrics.files`
#: has a reader for each.
FILES = {"csv": "FILE", "jsonl": "FILE", "trainer-state": "FILE", "tensorboard": "FOLDER"}
#: They, as people write them.
WRITTEN = ", ".join(f"{kind}:{what}" for kind, what in FILES.items())
#: What names another source of a metric than a pattern: a file, or what the program sends or prints by names. Behind #
#: is the metric's name there.
_SOURCE = re.compile(
    rf"(?:(?P<file>{'|'.join(FILES)}):(?P<where>[^#\x00]+)|(?P<sent>lines|status))(?:#(?P<name>[^#\x00]+))?"
)

#: A number as programs print it.
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|NaN|NAN|inf|Infinity)"


@dataclass(frozen=True, slots=True)
class MetricSource:
    """Where a metric comes from.

    `kind`: `pattern`, `lines`, `status`, or that of a file: one of `FILES`.

    `where` is the pattern, or the file, in whose name * and ** may be; `name` is what the metric is called there.
    """

    metric: str
    kind: str
    where: str = ""
    name: str = ""

    @classmethod
    def read(cls, metric: str, text: str) -> MetricSource:
        """From a job file: `csv:logs/metrics.csv#val/loss`, `status`, or a regular expression."""
        found = _SOURCE.fullmatch(text)
        if found is None:
            return cls(metric, "pattern", text)
        return cls(metric, found["file"] or found["sent"], found["where"] or "", found["name"] or "")

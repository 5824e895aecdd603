"""This machine's own price, which its owner says: it is kept among the user's defaults, as the `prices` of jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from coach.core.cluster import Resources
from coach.core.errors import UserError
from coach.core.money import HOUR
from coach.jobfiles.changes import Changes, defaults_file

_PRICE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]{3})\s*/\s*(gpuh|coreh|gibh|h)\s*", re.IGNORECASE)
_RIGHT = (
    "an amount, its currency and what it is paid for: 0.40USD/gpuh (a GPU), 0.02USD/coreh (a core), "
    "0.002USD/gibh (a GiB of memory), 1.20USD/h"
)


def prices_of(texts: Sequence[str], machine: Resources) -> dict[str, Any]:
    """`0.40USD/gpuh` and the like as a job file has prices; `/h` is the price of `machine` whole. Raises UserError."""
    hours: dict[str, float] = {}
    currencies: dict[str, None] = {}
    for text in texts:
        found = _PRICE.fullmatch(text)
        if found is None or found[3].lower() in hours:
            raise UserError(f"{text}: {_RIGHT}, each once")
        hours[found[3].lower()] = float(found[1])
        currencies[found[2].upper()] = None
    if len(currencies) != 1:
        raise UserError(f"{' '.join(texts) or 'nothing'}: {_RIGHT}; all in one currency")
    prices: dict[str, Any] = {
        "name": "this-machine",
        "currency": next(iter(currencies)),
        "vcpuSecond": hours.get("coreh", 0.0) / HOUR,
        "gibSecond": hours.get("gibh", 0.0) / HOUR,
        "gpuSecond": hours.get("gpuh", 0.0) / HOUR,
        "invocation": 0.0,
    }
    if "h" in hours:
        size = {"cpu": f"{machine.cpu:g}", "memory": f"{int(machine.memory * 1024)}Mi", "gpu": int(machine.gpu)}
        prices["instance"] = {"hour": hours["h"], **size}
    return prices


def keep(prices: Mapping[str, Any] | str) -> Path:
    """Make them the `prices` of jobs whose files say none; the file that has them. The rest of it stays as it is.

    Raises UserError where it cannot be written, JobFileError where it is not what such a file is.
    """
    file = defaults_file().expanduser().resolve()
    if file.exists() and not file.is_file():
        raise UserError(f"{file}: not a file; COACH_DEFAULTS names the one to write to")
    Changes.read(defaults=file)
    try:
        text = file.read_text("utf-8") if file.exists() else ""
        new = _with(text, yaml.safe_dump({"prices": prices}, sort_keys=False, allow_unicode=True))
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_name(f".{file.name}.new")
        written.write_text(new, "utf-8")
        written.replace(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from error
    return file


def _with(text: str, new: str) -> str:
    """The text with `new` in place of its own `prices`, or behind it."""
    node = yaml.compose(text, yaml.SafeLoader)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "prices":
            after = text[_end(value) :].partition("\n")[2]
            return text[: key.start_mark.index] + new + after
    return text + ("\n" if text and not text.endswith("\n") else "") + new


def _end(node: yaml.Node) -> int:
    """Where a value ends: YAML takes the comments behind a mapping in lines for a part of it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _end(node.value[-1][1])
    return int(node.end_mark.index)

"""Quantities as people write them: `500m` cores, `1Gi` of memory, `10m` of time.

The spellings of cores and memory are those of Kubernetes, so that one job file serves every platform. The
patterns are plain enough for Go's RE2, because the CRD's schema has them too.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

CPU_PATTERN = r"^([0-9]{1,7}m|[0-9]{1,4}(\.[0-9]{1,3})?)$"
MEMORY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
DURATION_PATTERN = r"^([0-9]{1,12}(\.[0-9]{1,3})?(ms|s|m|h|d)){1,5}$"

_GIB = 1024.0**3
_MEMORY_BYTES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MEMORY_BYTES |= {"Ki": 1024.0, "Mi": 1024.0**2, "Gi": _GIB, "Ti": 1024.0**4}
_SUFFIXES: dict[str, str | int] = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": 1}
_SUFFIXES |= {suffix: 1000 ** (power + 1) for power, suffix in enumerate("kMGTPE")}
_SUFFIXES |= {f"{suffix}i": 1024 ** (power + 1) for power, suffix in enumerate("KMGTPE")}
_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


@lru_cache
def cores(text: str) -> float:
    """Cores of a Kubernetes CPU quantity: `500m` is 0.5. Raises ValueError for any other text."""
    if not re.fullmatch(CPU_PATTERN[1:-1], text):
        raise ValueError(f"not a CPU quantity: {text!r}")
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)


@lru_cache
def gib(text: str) -> float:
    """GiB of a Kubernetes memory quantity: `512Mi` is 0.5. Raises ValueError for any other text."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", text)
    if not match or not re.fullmatch(MEMORY_PATTERN[1:-1], text):
        raise ValueError(f"not a memory quantity: {text!r}")
    return float(match[1]) * _MEMORY_BYTES[match[2]] / _GIB


@lru_cache
def of_object(text: str) -> float:
    """The number of a quantity in any spelling of the Kubernetes API: `129e6`, `128974848000m`, `4Gi`, `1E3`.

    Raises ValueError for any other text, and for one below 0.
    """
    match = re.fullmatch(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([a-zA-Z]{0,2})|[eE]([+-]?[0-9]{1,2}))", text)
    if match is None or (match[2] or "") not in _SUFFIXES:
        raise ValueError(f"not a quantity: {text!r}")
    return float(Decimal(match[1]) * (Decimal(f"1e{match[3]}") if match[3] else Decimal(_SUFFIXES[match[2]])))


def seconds(text: str) -> float:
    """Seconds of a duration, to the millisecond: `1h30m` is 5400. Raises ValueError for any other text."""
    if not re.fullmatch(DURATION_PATTERN[1:-1], text):
        raise ValueError(f"not a duration: {text!r}")
    parts = _DURATION_PART.findall(text)
    return round(sum(float(number) * _MILLISECONDS[unit] for number, unit in parts)) / 1000


def duration(amount: float) -> str:
    """The duration of `amount` seconds in the largest unit that holds it exactly: 5400 is `90m`."""
    milliseconds = round(amount * 1000)
    for unit, size in _MILLISECONDS.items():
        if milliseconds % size == 0 and (milliseconds or unit == "s"):
            return f"{milliseconds // size}{unit}"
    raise AssertionError("a whole number of milliseconds is a multiple of one")

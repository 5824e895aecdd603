"""A policy's parameters as text: `fitgpp:P=1,s=4`, `drf:cadence=1200`.

A policy is a dataclass; its fields with a default are its parameters, spelled as the field or, where the paper has a
symbol, as the field's metadata says: `field(default=4.0, metadata={"symbol": "s"})`.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

#: Filled in by the driver, never spelled.
GIVEN = "rng"

_TRUE = {"yes": True, "no": False}


def spelled(name: str, policy: Any) -> str:
    """`name`, and behind a colon the parameters that differ from their defaults."""
    changed = [
        f"{symbol}={_text(value)}"
        for symbol, field in parameters(type(policy)).items()
        if (value := getattr(policy, field.name)) != field.default
    ]
    return f"{name}:{','.join(changed)}" if changed else name


def form(name: str, kind: type) -> str:
    """How a policy is written, with all its defaults: `fitgpp or fitgpp:P=1,s=4`."""
    known = ",".join(f"{symbol}={_text(field.default)}" for symbol, field in parameters(kind).items())
    return f"{name} or {name}:{known}" if known else name


def parsed(kind: type, argument: str) -> dict[str, Any] | None:
    """Keyword arguments for `kind` from the text behind the colon; None where that is wrong."""
    known, hints = parameters(kind), get_type_hints(kind)
    found: dict[str, Any] = {}
    for part in argument.split(",") if argument else ():
        symbol, equals, text = part.strip().partition("=")
        field = known.get(symbol)
        if not equals or field is None or field.name in found:
            return None
        value = _value(hints[field.name], text)
        if value is None:
            return None
        found[field.name] = value
    return found


def parameters(kind: type) -> dict[str, Field[Any]]:
    """The fields that are parameters, by how they are spelled."""
    return {
        field.metadata.get("symbol", field.name): field
        for field in fields(kind)
        if field.init and field.default is not MISSING and field.name != GIVEN
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _value(hint: Any, text: str) -> Any:
    """`text` as the type of a field; None where it is not one. Numbers are finite and not negative."""
    if hint is bool:
        return _TRUE.get(text)
    if hint is int:
        return int(text) if re.fullmatch(r"\d{1,9}", text) else None
    if hint is str:
        return text or None
    # float, or float | None
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) else None

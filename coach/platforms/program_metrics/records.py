"""Records in a line: objects of JSON, and dictionaries as Python prints them, NaN and infinity included."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

#: Records of one line, and places where one may begin.
MAX_RECORDS = 8
_PARTS = re.compile(r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|[{}]""")
_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\"""")
_JSON = json.JSONDecoder()
_WORDS = {"nan": math.nan, "inf": math.inf, "NaN": math.nan, "Infinity": math.inf}


def records(line: str) -> tuple[list[Mapping[Any, Any]], str]:
    """The records in a line, and the line without them.

    Of a line with a part of a record, which another process cut, nothing is left: what is named in it may be of a
    record in that one. Lines of a record that is printed in several are kept.
    """
    found: list[Mapping[Any, Any]] = []
    rest, at = "", 0
    for _ in range(MAX_RECORDS):
        begin = line.find("{", at)
        if begin < 0:
            break
        record, end = _read(line, begin)
        rest += line[at:begin] + (" " if record is not None else line[begin:end])
        found += [] if record is None else [record]
        at = end
    rest += line[at:]
    begun, ended = (_TEXT.sub("", rest).count(brace) for brace in "{}")
    if begun == ended:
        return found, rest
    several = not found and ((begun, ended) == (0, 1) or ((begun, ended) == (1, 0) and rest.lstrip().startswith("{")))
    return [], rest if several else ""


def _read(line: str, begin: int) -> tuple[Mapping[Any, Any] | None, int]:
    """The record that begins there, and its end; without one, where to look on."""
    with contextlib.suppress(ValueError, RecursionError):
        record, end = _JSON.raw_decode(line, begin)
        return record, end
    depth = 0
    for part in _PARTS.finditer(line, begin):
        depth += {"{": 1, "}": -1}.get(part[0], 0)
        if not depth:
            with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                tree = ast.parse(line[begin : part.end()], mode="eval").body
                if isinstance(tree, ast.Dict):
                    return _plain(tree), part.end()
            break
    return None, begin + 1


def _plain(tree: ast.AST) -> Any:
    """The value of an expression, as far as it is made of constants; None for others, which do not hide the rest."""
    if isinstance(tree, ast.Dict):
        return {_plain(key): _plain(value) for key, value in zip(tree.keys, tree.values, strict=True) if key}
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.Name):
        return _WORDS.get(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        value = _plain(tree.operand)
        if isinstance(value, int | float):
            return -value if isinstance(tree.op, ast.USub) else value
    return None

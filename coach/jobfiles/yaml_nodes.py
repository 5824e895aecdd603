"""YAML as nodes with their positions, read within bounds that no file can exceed.

The values are those of JSON (YAML's core schema): `no` and `on` are words, `1e-3` is a number, dates are text.
Job files come from strangers, so size, depth, number of nodes and what aliases expand to are bounded, tags are refused,
and whatever is wrong ends as a `Problem`: the first of a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import yaml
from yaml.reader import Reader

from coach.jobfiles.diagnostics import Problem, dotted, plain, show

MAX_BYTES = 1 << 20
DEEPEST = 32
MAX_NODES = 20_000  #: in a file, after aliases are put in

Value = str | int | float | bool | None
#: Characters of a line that a message shows.
_LINE = 70

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
#: The tags that a value has without saying one, and that of text.
_PLAIN, _QUOTED, _COLLECTION, _TEXT = "plain", "quoted", "collection", "tag:yaml.org,2002:str"


@dataclass(slots=True)
class YamlNode:
    """A value and its position. `items` of a mapping are (key, its node); those of a list have empty keys."""

    line: int
    column: int
    value: Value = None
    kind: type = NoneType  #: dict, list, or the scalar's type
    items: list[tuple[Key, YamlNode]] = field(default_factory=list)

    def plain(self) -> Any:
        """The value without positions; a key with nothing is left out."""
        if self.kind is list:
            return [node.plain() for _, node in self.items]
        if self.kind is dict:
            return {key.text: node.plain() for key, node in self.items if node.kind is not NoneType}
        return self.value

    def find(self, key: str) -> tuple[Key, YamlNode] | None:
        """The item of this key, or of a list the one with this number."""
        if self.kind is list:
            return next((item for number, item in enumerate(self.items) if str(number) == key), None)
        return next((item for item in self.items if item[0].text == key), None)


@dataclass(frozen=True, slots=True)
class Key:
    """A mapping's key and its position."""

    text: str
    line: int
    column: int


class _Stop(Exception):
    """The rest of the file is not read: line, column, field, problem, value seen, what would be right."""


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with bounds, its tags only for how a value is written."""

    depth = count = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """A node begins inside of another."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.depth += 1
        self.count += 1
        _bound(_place(event), self.count, self.depth - isinstance(event, yaml.ScalarEvent))

    def ascend_resolver(self) -> None:
        """It has ended."""
        self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node that says none."""
        return _COLLECTION if kind is not yaml.ScalarNode else _PLAIN if implicit[0] else _QUOTED


def read(data: bytes, path: str) -> tuple[list[YamlNode], list[Problem]]:
    """The documents of a file as far as it is YAML, and its mistake as such. Empty documents are left out."""
    documents: list[YamlNode] = []
    problems: list[Problem] = []
    loader = None
    try:
        loader, nodes = _Loader(_decode(data)), _Nodes()
        while loader.check_node():
            documents.append(nodes.of(loader.get_node(), ()))
    except _Stop as stop:
        problems.append(Problem(path, *stop.args))
    except yaml.MarkedYAMLError as error:
        assert loader is not None
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        snippet = mark.get_snippet(0, _LINE) if mark.buffer is not None else None
        seen = f'"{plain(snippet.splitlines()[0].strip())}"' if snippet else "here"
        right = plain(error.context or "", 200)
        right = f"correct YAML; it came up {right}" if right else "correct YAML"
        problem = f"not YAML: {plain(error.problem or 'not readable', 200)}"
        problems.append(Problem(path, mark.line + 1, mark.column + 1, "", problem, seen, right))
    except (yaml.YAMLError, ValueError, OverflowError, IndexError, TypeError) as error:
        # The scanner lets a few of Python's own errors through, such as chr() on "\Uffffffff".
        assert loader is not None
        mark = loader.get_mark()
        seen = plain(f"{error}", 200)
        problems.append(Problem(path, mark.line + 1, mark.column + 1, "", "not YAML", seen, "correct YAML"))
    return [document for document in documents if document.kind is not NoneType], problems


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _Stop(1, 1, "", "too large", f"{len(data)} bytes or more", f"at most {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        seen = f"byte 0x{data[error.start]:02x}"
        raise _Stop(*_end(before), "", "not UTF-8", seen, "a text file in UTF-8") from None
    if found := Reader.NON_PRINTABLE.search(text):
        raise _Stop(*_end(text[: found.start()]), "", "a control character", plain(found[0]), "printable text")
    return text


def _end(text: str) -> tuple[int, int]:
    """Line and column behind a text."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _place(found: Any) -> tuple[int, int]:
    return found.start_mark.line + 1, found.start_mark.column + 1


def _bound(place: tuple[int, int], count: int, depth: int) -> None:
    if depth > DEEPEST:
        raise _Stop(*place, "", "too deep", f"level {depth}", f"at most {DEEPEST} with all aliases put in")
    if count > MAX_NODES:
        raise _Stop(*place, "", "too many values", f"{count}", f"at most {MAX_NODES} with all aliases put in")


class _Nodes:
    """Nodes out of PyYAML's, aliases put in; counts them."""

    count = 0

    def of(self, node: Any, at: tuple[str, ...], depth: int = 0) -> YamlNode:
        """The node at a path of keys, in so many collections."""
        place, is_scalar = _place(node), isinstance(node, yaml.ScalarNode)
        self.count += 1
        _bound(place, self.count, depth + 1 - is_scalar)
        if node.tag not in ((_PLAIN, _QUOTED, _TEXT) if is_scalar else (_COLLECTION,)):
            raise _Stop(*place, dotted(at), "a tag", plain(node.tag), "a value without a tag")
        if is_scalar:
            value = resolve(node.value) if node.tag == _PLAIN else _whole(node, at)
            return YamlNode(*place, value, type(value))
        if isinstance(node, yaml.SequenceNode):
            items = [(Key("", *_place(each)), self.of(each, at, depth + 1)) for each in node.value]
            return YamlNode(*place, kind=list, items=items)
        made = YamlNode(*place, kind=dict)
        lines: dict[str, int] = {}
        for key, value in node.value:
            line, column = _place(key)
            if not isinstance(key, yaml.ScalarNode):
                seen = show(self.of(key, at, depth + 1).plain())
                raise _Stop(line, column, dotted(at), "a key that is no text", seen, "a word as the key")
            text = _whole(key, at)
            if text in lines:
                problem = f"the key {plain(text)} is here a second time"
                raise _Stop(line, column, dotted(at), problem, f"said before in line {lines[text]}", "once")
            lines[text] = line
            made.items.append((Key(text, line, column), self.of(value, (*at, text), depth + 1)))
        return made


def _whole(node: Any, at: tuple[str, ...]) -> str:
    """A text, which may not have one half of a surrogate pair."""
    text: str = node.value
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _Stop(*_place(node), dotted(at), "half a character", f'"{plain(text)}"', "text of whole characters")
    return text


def resolve(text: str) -> Value:
    """The value of a plain scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) <= 20:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text

"""YAML as nodes with their positions, read within bounds that no file can exceed.

The values are those of JSON (YAML's core schema): `no` and `on` are words, `1e-3` is a number, dates are text.
Job files come from strangers, so size, depth, number of nodes and what aliases expand to are bounded, tags beyond the
plain ones are refused, and whatever is wrong ends as a `Problem`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)
from yaml.reader import Reader

from coach.jobfiles.diagnostics import Problem, dotted, plain, show

MAX_BYTES = 1 << 20
DEEPEST = 32
MAX_NODES = 20_000  #: in a file, after aliases are put in

Value = str | int | float | bool | None

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
_TAG = "tag:yaml.org,2002:"
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "null": (NoneType,),
    "map": (dict,),
    "seq": (list,),
}


@dataclass(slots=True)
class YamlNode:
    """A value and its position. `items` of a mapping are (key, its node); those of a list have empty keys."""

    line: int
    column: int
    value: Value = None
    kind: type = NoneType  #: dict, list, or the scalar's type
    items: list[tuple[Key, YamlNode]] = field(default_factory=list)
    size: int = 1
    height: int = 1

    def plain(self) -> Any:
        """The value without positions. Of a key said twice the first counts; a key with nothing is left out."""
        if self.kind is list:
            return [node.plain() for _, node in self.items]
        if self.kind is not dict:
            return self.value
        values: dict[str, Any] = {}
        for key, node in self.items:
            if node.kind is not NoneType:
                values.setdefault(key.text, node.plain())
        return values

    def find(self, key: str | int) -> tuple[Key, YamlNode] | None:
        """The item of this key or index."""
        if self.kind is list and isinstance(key, int) and 0 <= key < len(self.items):
            return self.items[key]
        return next(((k, node) for k, node in self.items if self.kind is dict and k.text == key), None)


@dataclass(frozen=True, slots=True)
class Key:
    """A mapping's key and its position."""

    text: str
    line: int
    column: int


class _Stop(Exception):
    """The rest of the file is not read."""

    def __init__(self, line: int, column: int, problem: str, seen: str, right: str) -> None:
        self.mistake = (line, column, "", problem, seen, right)


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet."""

    node: YamlNode
    anchor: str | None
    key: Key | None = None
    lines: dict[str, int] = field(default_factory=dict)  #: where each key was said first


def read(data: bytes, path: str) -> tuple[list[YamlNode], list[Problem]]:
    """The documents of a file, and its mistakes as YAML. Empty documents are left out."""
    problems: list[Problem] = []
    documents: list[YamlNode] = []
    try:
        text = _decode(data)
        loader = yaml.SafeLoader(text)
        composer = _Composer(path, problems)
        try:
            for event in _events(loader):
                document = composer.take(event)
                if document is not None and document.kind is not NoneType:
                    documents.append(document)
        finally:
            loader.dispose()
    except _Stop as stop:
        problems.append(Problem(path, *stop.mistake))
    return documents, problems


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _Stop(1, 1, "too large", f"{len(data)} bytes or more", f"at most {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        seen = f"byte 0x{data[error.start]:02x}"
        raise _Stop(*_place(before, len(before)), "not UTF-8", seen, "a text file in UTF-8") from None
    found = Reader.NON_PRINTABLE.search(text)
    if found:
        seen = plain(found[0])
        raise _Stop(*_place(text, found.start()), "a control character", seen, "printable text") from None
    return text


def _place(text: str, index: int) -> tuple[int, int]:
    line = text.count("\n", 0, index)
    return line + 1, index - (text.rfind("\n", 0, index) + 1) + 1


def _events(loader: yaml.SafeLoader) -> Iterator[Event]:
    """The parser's events; whatever it raises becomes one mistake, at the place it had come to."""
    while True:
        try:
            if not loader.check_event():
                return
            event: Event = loader.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark or loader.get_mark()
            problem = plain(error.problem or "not readable", 200)
            snippet = mark.get_snippet(0, _LINE) if mark.buffer is not None else None
            seen = f'"{plain(snippet.splitlines()[0].strip())}"' if snippet else "here"
            right = plain(error.context or "", 200)
            right = f"correct YAML; it came up {right}" if right else "correct YAML"
            raise _Stop(mark.line + 1, mark.column + 1, f"not YAML: {problem}", seen, right) from None
        except (yaml.YAMLError, ValueError, OverflowError, IndexError, TypeError) as error:
            # The scanner lets a few of Python's own errors through, such as chr() on "\Uffffffff".
            mark = loader.get_mark()
            seen = plain(f"{error}", 200)
            raise _Stop(mark.line + 1, mark.column + 1, "not YAML", seen, "correct YAML") from None
        yield event


_LINE = 70


def _start(event: Event) -> tuple[int, int]:
    """Line and column of an event, from 1."""
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


class _Composer:
    """Nodes out of events, without recursion; keeps count of what the bounds are about."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        self.open: list[_Open] = []
        self.anchors: dict[str, YamlNode | None] = {}
        self.count = 0

    def take(self, event: Event) -> YamlNode | None:
        """The next event's document, where the event ends one."""
        if isinstance(event, DocumentStartEvent):
            self.anchors = {}
        elif isinstance(event, CollectionStartEvent):
            node = self.node(event, dict if isinstance(event, MappingStartEvent) else list)
            if len(self.open) >= DEEPEST:
                raise _Stop(
                    node.line, node.column, "too deep", f"level {DEEPEST + 1}", f"at most {DEEPEST} levels"
                )
            self.open.append(_Open(node, event.anchor))
            if event.anchor:
                self.anchors[event.anchor] = None
        elif isinstance(event, CollectionEndEvent):
            closed = self.open.pop()
            node = closed.node
            node.size = 1 + sum(item.size for _, item in node.items)
            node.height = 1 + max((item.height for _, item in node.items), default=0)
            return self.put(node, closed.anchor)
        elif isinstance(event, ScalarEvent):
            return self.put(self.scalar(event), event.anchor, event)
        elif isinstance(event, AliasEvent):
            return self.put(self.alias(event), None)
        return None

    def node(self, event: NodeEvent, kind: type) -> YamlNode:
        self.bound(1, event)
        node = YamlNode(*_start(event), kind=kind)
        tag = getattr(event, "tag", None)
        if kind is not NoneType and tag not in (None, "!", _TAG + ("map" if kind is dict else "seq")):
            self.report(node, "a tag", plain(tag or ""), "no tag")
        return node

    def scalar(self, event: ScalarEvent) -> YamlNode:
        node = self.node(event, NoneType)
        text: str = event.value
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            self.report(node, "half a character", f'"{plain(text)}"', "text of whole characters")
            text = text.encode("utf-8", "replace").decode()
        quoted = event.style is not None or event.tag in ("!", _TAG + "str")
        node.value = text if quoted else resolve(text)
        node.kind = type(node.value)
        if event.tag not in (None, "!"):
            wanted = _TYPES.get(event.tag.removeprefix(_TAG), ()) if event.tag.startswith(_TAG) else ()
            if not isinstance(node.value, wanted) or (node.kind is bool and bool not in wanted):
                self.report(
                    node, f"the tag {plain(event.tag)}", show(node.value), "a plain value without a tag"
                )
        return node

    def alias(self, event: AliasEvent) -> YamlNode:
        name = f"*{plain(event.anchor or '')}"
        if event.anchor not in self.anchors:
            raise _Stop(*_start(event), "an alias of nothing", name, "an anchor before it")
        node = self.anchors[event.anchor]
        if node is None:
            raise _Stop(
                *_start(event), "an alias inside of the value it refers to", name, "a value of its own"
            )
        self.bound(node.size, event)
        if len(self.open) + node.height > DEEPEST + 1:
            raise _Stop(*_start(event), "too deep with its alias", name, f"at most {DEEPEST} levels")
        return node

    def put(self, node: YamlNode, anchor: str | None, scalar: ScalarEvent | None = None) -> YamlNode | None:
        """A finished node goes into the collection it belongs to; without one it is a document."""
        if anchor:
            self.anchors[anchor] = node
        if not self.open:
            return node
        parent = self.open[-1]
        if parent.node.kind is list:
            parent.node.items.append((Key("", node.line, node.column), node))
        elif parent.key is None:
            parent.key = self.key(parent, node, scalar)
        else:
            parent.node.items.append((parent.key, node))
            parent.key = None
        return None

    def key(self, parent: _Open, node: YamlNode, scalar: ScalarEvent | None) -> Key:
        if node.kind in (dict, list):
            self.report(node, "a key that is no text", show(node.plain()), "a word as the key")
            return Key("", node.line, node.column)
        text = scalar.value if scalar is not None else str(node.value)
        key = Key(text.encode("utf-8", "replace").decode(), node.line, node.column)
        if key.text in parent.lines:
            problem = f"the key {plain(key.text)} is here a second time"
            self.report(node, problem, f"said before in line {parent.lines[key.text]}", "once")
        parent.lines.setdefault(key.text, node.line)
        return key

    def bound(self, count: int, event: NodeEvent) -> None:
        self.count += count
        if self.count > MAX_NODES:
            raise _Stop(
                *_start(event),
                "too many values",
                f"{self.count}",
                f"at most {MAX_NODES} with all aliases put in",
            )

    def report(self, node: YamlNode, problem: str, seen: str, right: str) -> None:
        field = dotted(inner.key.text for inner in self.open if inner.key)
        self.problems.append(Problem(self.path, node.line, node.column, field, problem, seen, right))


def resolve(text: str) -> Value:
    """The value of a plain scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) <= 20:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text

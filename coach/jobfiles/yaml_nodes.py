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
    ScalarEvent,
    StreamEndEvent,
)
from yaml.reader import Reader

from coach.jobfiles.diagnostics import Problem, dotted, plain, show

MAX_BYTES = 1 << 20
DEEPEST = 32
MAX_NODES = 20_000  #: in a file, after aliases are put in

Value = str | int | float | bool | None
Path = tuple[str | None, ...]  #: None: an item of a list, or a key
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
_TAG = "tag:yaml.org,2002:"
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "null": (NoneType,),
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
    """The rest of the file is not read."""

    def __init__(self, line: int, column: int, problem: str, seen: str, right: str) -> None:
        self.mistake = (line, column, "", problem, seen, right)


def read(data: bytes, path: str) -> tuple[list[YamlNode], list[Problem]]:
    """The documents of a file, and its mistakes as YAML. Empty documents are left out."""
    problems: list[Problem] = []
    documents: list[YamlNode] = []
    try:
        loader = yaml.SafeLoader(_decode(data))
        try:
            documents.extend(_Composer(loader, path, problems).documents())
        finally:
            loader.dispose()
    except _Stop as stop:
        problems.append(Problem(path, *stop.mistake))
    return [document for document in documents if document.kind is not NoneType], problems


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


class _Composer:
    """Nodes out of the parser's events; keeps count of what the bounds are about."""

    def __init__(self, loader: yaml.SafeLoader, path: str, problems: list[Problem]) -> None:
        self.loader = loader
        self.path = path
        self.problems = problems
        self.anchors: dict[str, YamlNode | None] = {}  #: None: its value has begun and not ended
        self.count = 0

    def documents(self) -> Iterator[YamlNode]:
        """The documents in order."""
        while not isinstance(event := self.next(), StreamEndEvent):
            if isinstance(event, DocumentStartEvent):
                self.anchors = {}
                yield self.compose(self.next(), ())

    def next(self) -> Event:
        """The parser's next event; whatever it raises becomes one mistake, at the place it had come to."""
        try:
            return self.loader.get_event()  # type: ignore[no-untyped-call, no-any-return]
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark or self.loader.get_mark()
            problem = plain(error.problem or "not readable", 200)
            snippet = mark.get_snippet(0, _LINE) if mark.buffer is not None else None
            seen = f'"{plain(snippet.splitlines()[0].strip())}"' if snippet else "here"
            right = plain(error.context or "", 200)
            right = f"correct YAML; it came up {right}" if right else "correct YAML"
            raise _Stop(mark.line + 1, mark.column + 1, f"not YAML: {problem}", seen, right) from None
        except (yaml.YAMLError, ValueError, OverflowError, IndexError, TypeError) as error:
            # The scanner lets a few of Python's own errors through, such as chr() on "\Uffffffff".
            mark = self.loader.get_mark()
            seen = plain(f"{error}", 200)
            raise _Stop(mark.line + 1, mark.column + 1, "not YAML", seen, "correct YAML") from None

    def compose(self, event: Event, at: Path) -> YamlNode:
        """The node that begins with this event; `at`: its path."""
        mark = event.start_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if isinstance(event, AliasEvent):
            return self.alias(event, place, len(at))
        self.bound(1, place)
        node = YamlNode(*place)
        assert isinstance(event, ScalarEvent | CollectionStartEvent)
        if isinstance(event, ScalarEvent):
            self.scalar(node, event, at)
        else:
            if len(at) >= DEEPEST:
                raise _Stop(*place, "too deep", f"level {DEEPEST + 1}", f"at most {DEEPEST} levels")
            if event.anchor:
                self.anchors[event.anchor] = None
            self.collection(node, event, at)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def collection(self, node: YamlNode, start: CollectionStartEvent, at: Path) -> None:
        """Everything up to its end."""
        node.kind, tag = (dict, "map") if isinstance(start, MappingStartEvent) else (list, "seq")
        if start.tag not in (None, "!", _TAG + tag):
            self.report(node, at, "a tag", plain(start.tag or ""), "no tag")
        first: dict[str, int] = {}  # the lines of its keys
        while not isinstance(event := self.next(), CollectionEndEvent):
            item = self.compose(event, (*at, None))
            key = Key("", item.line, item.column)
            if node.kind is dict:
                key = self.key(event, item, at, first)
                item = self.compose(self.next(), (*at, key.text))
            node.items.append((key, item))
            node.size += item.size
            node.height = max(node.height, item.height + 1)

    def key(self, event: Event, node: YamlNode, at: Path, first: dict[str, int]) -> Key:
        """What a node is as a key; `first`: the lines of the keys before it in the mapping."""
        if node.kind in (dict, list):
            self.report(node, at, "a key that is no text", show(node.plain()), "a word as the key")
            return Key("", node.line, node.column)
        text = event.value if isinstance(event, ScalarEvent) else str(node.value)
        key = Key(text.encode("utf-8", "replace").decode(), node.line, node.column)
        if key.text in first:
            problem = f"the key {plain(key.text)} is here a second time"
            self.report(node, at, problem, f"said before in line {first[key.text]}", "once")
        first.setdefault(key.text, node.line)
        return key

    def scalar(self, node: YamlNode, event: ScalarEvent, at: Path) -> None:
        text: str = event.value
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            self.report(node, at, "half a character", f'"{plain(text)}"', "text of whole characters")
            text = text.encode("utf-8", "replace").decode()
        quoted = event.style is not None or event.tag in ("!", _TAG + "str")
        node.value = text if quoted else resolve(text)
        node.kind = type(node.value)
        if event.tag not in (None, "!"):
            wanted = _TYPES.get(event.tag.removeprefix(_TAG), ()) if event.tag.startswith(_TAG) else ()
            if not isinstance(node.value, wanted) or (node.kind is bool and bool not in wanted):
                right = "a plain value without a tag"
                self.report(node, at, f"the tag {plain(event.tag)}", show(node.value), right)

    def alias(self, event: AliasEvent, place: tuple[int, int], depth: int) -> YamlNode:
        name = f"*{plain(event.anchor or '')}"
        if event.anchor not in self.anchors:
            raise _Stop(*place, "an alias of nothing", name, "an anchor before it")
        node = self.anchors[event.anchor]
        if node is None:
            raise _Stop(*place, "an alias inside of the value it refers to", name, "a value of its own")
        self.bound(node.size, place)
        if depth + node.height > DEEPEST + 1:
            raise _Stop(*place, "too deep with its alias", name, f"at most {DEEPEST} levels")
        return node

    def bound(self, count: int, place: tuple[int, int]) -> None:
        self.count += count
        if self.count > MAX_NODES:
            right = f"at most {MAX_NODES} with all aliases put in"
            raise _Stop(*place, "too many values", f"{self.count}", right)

    def report(self, node: YamlNode, at: Path, problem: str, seen: str, right: str) -> None:
        field = dotted(key for key in at if key is not None)
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

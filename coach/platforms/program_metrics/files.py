"""Files in which a program writes its metrics, followed while they grow.

What was in a file before the program started is of an earlier run. A file may be written anew, by Lightning whenever a
new column appears: then what was known of it does not come again. What is no regular file is left alone.
"""

from __future__ import annotations

import contextlib
import csv
import fnmatch
import glob
import itertools
import json
import math
import os
import re
import stat
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics.base import EPOCH_NAMES, numbers
from coach.platforms.program_metrics.tensorboard import LONGEST_RECORD, records, scalars
from coach.platforms.program_metrics.text import EVALUATION, PARTS, TRAINING, number, words_of

Record = Mapping[Any, Any]

#: Names of files in a folder that is named in place of a file.
USUAL_NAMES = {
    "csv": "metrics.csv",
    "jsonl": "*.jsonl",
    "trainer-state": "trainer_state.json",
    "tensorboard": "events.out.tfevents.*",
}
#: Files of one source that are followed: the newest. Files among which they are; names in folders that are looked at.
MAX_FILES, MAX_NAMES, MAX_LOOKED = 16, 10_000, 100_000
#: Bytes of a file that are read at one look; of a line; of a file that is read as a whole.
CHUNK, LONGEST_LINE, LARGEST_FILE = 2 * LONGEST_RECORD, 1 << 16, 32 << 20
#: Bytes by which a file is known to be the one that was read before.
LAST_BYTES = 256
#: A letter of a name that is a pattern's elsewhere, as `glob.escape` writes it.
_ESCAPED = re.compile(r"\[([*?[])\]")
#: Looks at a file that was there before the program; what is then left of it is passed over.
LOOKS_BEFORE = 16
#: Records that are remembered, to know them where they are written again.
MAX_KNOWN = 100_000


class Followed:
    """The files of one source. `directory` is where the program runs.

    It has not started yet, or it did at `since`, in seconds since 1970: then a file that was written since counts, if
    it really is in `directory`, for the program is on another machine.
    """

    def __init__(self, source: MetricSource, directory: Path, since: float = math.inf) -> None:
        self.source = source
        self._directory = directory
        self._elsewhere = since < math.inf
        self._known = _Known()
        self._files: dict[str, _File] = {}
        self._owners: dict[Any, str] = {}  #: of each name, which evaluation's files have it
        self._waits: dict[str, Record | None] = {}  #: the first record of each file of a training
        for name in self._names():
            with contextlib.suppress(OSError):
                if (self._directory / name).stat().st_mtime < since:
                    self._file(name).pass_over()
        self._known.begin()

    def records(self, *, last: bool = False) -> Iterator[Record]:
        """What was written since the last look; the `last` one has all.

        Where folders say on what their files' values were measured, as Keras's `train` and `validation`, those of one
        evaluation count alone. The first record of a training waits for the second: by then an evaluation has come.
        """
        parts = {name: _part(name) for name in self._names()}
        for name in sorted(parts, key=lambda name: parts[name] not in EVALUATION):
            part = parts[name]
            for record in self._file(name).look():
                if part in EVALUATION:
                    for key in record:
                        self._owners.setdefault(key, part)
                if part in TRAINING and name not in self._waits:
                    self._waits[name] = record
                    continue
                yield from self._owned(self._waits.get(name), part)
                self._waits[name] = None
                yield from self._owned(record, part)
        for name, first in self._waits.items() if last else ():
            yield from self._owned(first, parts.get(name, ""))

    def _owned(self, record: Record | None, part: str) -> Iterator[Record]:
        """What of a record counts, if anything."""
        found = {key: value for key, value in (record or {}).items() if self._owners.get(key, part) == part}
        if any(key not in EPOCH_NAMES for key in found):
            yield found

    def _file(self, name: str) -> _File:
        if name not in self._files:
            self._files[name] = _KINDS[self.source.kind](self._directory / name, self._known)
        return self._files[name]

    def _names(self) -> list[str]:
        """The newest files, the oldest of them first; by its shortest name one that links give several."""
        found: dict[Path, tuple[float, str]] = {}
        for name in sorted(itertools.islice(self._candidates(), MAX_NAMES), key=lambda name: (len(name), name)):
            with contextlib.suppress(OSError, RuntimeError):  # the latter for links that go in a circle
                path = (self._directory / name).resolve()
                if path not in found and (not self._elsewhere or path.is_relative_to(self._directory)):
                    found[path] = path.stat().st_mtime, name
        return [name for _, name in sorted(found.values())[-MAX_FILES:]]

    def _candidates(self) -> Iterator[str]:
        root, usual, paths = self._directory, USUAL_NAMES[self.source.kind], _Paths(self._directory)
        for name in paths.of(self.source.where):
            folder = False
            with contextlib.suppress(OSError):
                folder = (root / name).is_dir()
            yield from paths.of(f"{glob.escape(name)}/**/{usual}") if folder else (name,)


def _part(name: str) -> str:
    """What a file's values were measured on, as its folders say it; or ""."""
    return next((word for folder in Path(name).parts[-2::-1] for word in words_of(folder) if word in PARTS), "")


class _Paths:
    """What patterns of names mean: as for `glob.glob`, but `*` and `**` pass no link to a folder, which may go in a
    circle, and all patterns of one look at MAX_LOOKED names at most.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._left = root, MAX_LOOKED

    def of(self, pattern: str) -> Iterator[str]:
        """The paths that are there, those above others first."""
        parts = tuple(part for part in pattern.split("/") if part)
        waiting = deque([("/" if pattern.startswith("/") else "", (*parts, "*") if parts[-1:] == ("**",) else parts)])
        while waiting:
            at, (part, *rest) = waiting.popleft()
            if part == "**":
                waiting.append((at, tuple(rest)))
                waiting.extend((name, (part, *rest)) for name, folder in self._in(at) if folder)
            elif glob.has_magic(part):
                hidden = part.startswith(".")
                for name, folder in self._in(at, hidden=hidden):
                    if (folder or not rest) and fnmatch.fnmatchcase(name.rpartition("/")[2], part):
                        if rest:
                            waiting.append((name, tuple(rest)))
                        else:
                            yield name
            elif rest:
                waiting.append((_below(at, _unescaped(part)), tuple(rest)))
            elif os.path.lexists(self._root / (name := _below(at, _unescaped(part)))):
                yield name

    def _in(self, folder: str, *, hidden: bool = False) -> Iterator[tuple[str, bool]]:
        """The paths in a folder, and whether each is a folder itself and no link to one."""
        with contextlib.suppress(OSError), os.scandir(self._root / folder) as entries:
            for entry in entries:
                if self._left <= 0:
                    return
                self._left -= 1
                if hidden or not entry.name.startswith("."):
                    yield _below(folder, entry.name), entry.is_dir(follow_symlinks=False)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder not in ("", "/") else f"{folder}{name}"


def _unescaped(part: str) -> str:
    """The name that `glob.escape` made a pattern of."""
    return _ESCAPED.sub(r"\1", part)


class _Known:
    """The records that are known, by their hashes: of this run, and those that were there before it."""

    def __init__(self) -> None:
        self._now: dict[int, None] = {}
        self._before: frozenset[int] = frozenset()

    def begin(self) -> None:
        """The program starts."""
        self._before, self._now = frozenset(self._now), {}

    def add(self, record: Record) -> bool:
        """Whether this run has not had the record yet; it is remembered."""
        key = self._key(record)
        new = key not in self._now
        self._now[key] = None
        if len(self._now) > MAX_KNOWN:
            del self._now[next(iter(self._now))]
        return new

    def was_before(self, record: Record) -> bool:
        """Whether the record was there before this run."""
        return self._key(record) in self._before

    @staticmethod
    def _key(record: Record) -> int:
        return hash(frozenset(numbers(record).items()))


class _File:
    """One file, read from where the last look ended."""

    def __init__(self, path: Path, known: _Known) -> None:
        self._path = path
        self._known = known
        self._which = (0, 0)  #: device and inode
        self._offset = 0
        self._last = b""  #: the end of what was read: where it is another, the file was written anew

    def look(self) -> Iterator[Record]:
        """The records since the last look."""
        with contextlib.suppress(OSError), self._opened() as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            if (status.st_dev, status.st_ino) != self._which or status.st_size < self._offset:
                self._which = status.st_dev, status.st_ino
                self._begin_anew()
            yield from self._read(file, status)

    def pass_over(self) -> None:
        """Take what is in it for known."""
        for _ in range(LOOKS_BEFORE):
            before = self._offset
            for _ in self.look():
                pass
            if self._offset == before:
                return
        with contextlib.suppress(OSError):
            self._offset = self._path.stat().st_size
            self._last = b""

    def _opened(self) -> Any:
        # A pipe without a writer would block.
        return os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)

    def _begin_anew(self) -> None:
        self._offset = 0

    def _read(self, file: Any, status: os.stat_result) -> Iterator[Record]:
        raise NotImplementedError


class _Lines(_File):
    """A text that grows by whole lines."""

    def __init__(self, path: Path, known: _Known) -> None:
        super().__init__(path, known)
        self._cut = False  #: the rest of a line that is too long is left out
        self._again = False  #: the file was written anew: what is known of it may come again

    def _begin_anew(self) -> None:
        self._again = self._offset > 0
        self._offset, self._last, self._cut = 0, b"", False

    def _read(self, file: Any, status: os.stat_result) -> Iterator[Record]:
        if os.pread(file.fileno(), len(self._last), self._offset - len(self._last)) != self._last:
            self._begin_anew()
        data = os.pread(file.fileno(), CHUNK, self._offset)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > LONGEST_LINE:
            self._offset, self._last, self._cut = self._offset + len(data), data[-LAST_BYTES:], True
            return
        self._offset += whole
        self._last = data[max(0, whole - LAST_BYTES) : whole] or self._last
        for line in data[:whole].splitlines():
            if not self._cut and len(line) <= LONGEST_LINE and line.strip():
                record = self._record(line.decode(errors="replace"))
                if record is not None and (self._known.add(record) or not self._again):
                    self._again = False
                    yield record
            self._cut = False

    def _record(self, line: str) -> Record | None:
        raise NotImplementedError


class _JsonLines(_Lines):
    """An object of JSON in each line."""

    def _record(self, line: str) -> Record | None:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            return record if isinstance(record, dict) else None
        return None


class _Csv(_Lines):
    """Lightning's `metrics.csv`, Keras's CSVLogger: names in the first line; fields may be empty.

    A line of names has the names from then on: a run that is resumed may have other columns.
    """

    def __init__(self, path: Path, known: _Known) -> None:
        super().__init__(path, known)
        self._names: list[str] = []
        self._delimiter = ","

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._names = []

    def _record(self, line: str) -> Record | None:
        if not self._names:
            line = line.lstrip("\ufeff")
            self._delimiter = max(",;\t", key=line.count)
        with contextlib.suppress(csv.Error):
            [fields] = csv.reader([line], delimiter=self._delimiter)
            fields = [field.strip() for field in fields]
            numbers_in = any(number(field) is not None or not field for field in fields)
            if not self._names or (not numbers_in and set(fields) & set(self._names)):
                self._names = fields
                return None
            return {name: field for name, field in zip(self._names, fields, strict=False) if field}
        return {}


class _TrainerState(_File):
    """`trainer_state.json` of transformers, in each checkpoint: all that was logged so far."""

    def __init__(self, path: Path, known: _Known) -> None:
        super().__init__(path, known)
        self._seen = (0, 0)

    def _read(self, file: Any, status: os.stat_result) -> Iterator[Record]:
        if self._seen == (status.st_size, status.st_mtime_ns) or status.st_size > LARGEST_FILE:
            return
        self._seen = status.st_size, status.st_mtime_ns
        try:
            history = json.loads(file.read(LARGEST_FILE))["log_history"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return  # not yet whole
        entries = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
        new = [entry for entry in entries if self._known.add(entry)]
        # A run that goes on has more than there was before; one that begins anew may find the same again.
        yield from [entry for entry in new if not self._known.was_before(entry)] or new


class _Events(_File):
    """TensorBoard's event files. The scalars of a step that follow each other are one record."""

    def _read(self, file: Any, status: os.stat_result) -> Iterator[Record]:
        data = os.pread(file.fileno(), CHUNK, self._offset)
        at, used, found = 0, 0, dict[str, float]()
        for event, end in records(data):
            if self._offset + end > status.st_size:
                break
            used = end
            try:
                step, values = scalars(event)
            except (ValueError, struct.error):
                continue
            if values and step != at and found:
                yield found
                found = {}
            if values:
                at, found = step, found | values
        self._offset += used
        if found:
            yield found


_KINDS: dict[str, type[_File]] = {
    "csv": _Csv,
    "jsonl": _JsonLines,
    "trainer-state": _TrainerState,
    "tensorboard": _Events,
}


def written_since(directory: Path, since: float) -> Iterator[tuple[str, str, list[str]]]:
    """Files with metrics that were written below a folder: kind, path, and the names of the metrics in each."""
    for at in itertools.islice(_walk(directory), MAX_NAMES):
        kind = next((kind for kind, pattern in _LOOK_LIKE.items() if fnmatch.fnmatch(at.name, pattern)), None)
        with contextlib.suppress(OSError):
            if kind is not None and at.stat().st_mtime >= since:
                found = [name for record in _KINDS[kind](at, _Known()).look() for name in numbers(record)]
                yield kind, str(at.relative_to(directory)), list(dict.fromkeys(found))


#: What the files of a kind are called.
_LOOK_LIKE = {**USUAL_NAMES, "csv": "*.csv"}


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, those above others first."""
    folders, looked = deque([folder]), 0
    while folders and looked < MAX_LOOKED:
        with contextlib.suppress(OSError), os.scandir(folders.popleft()) as entries:
            for entry in entries:
                looked += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield Path(entry.path)

"""Files from anywhere: read as they are meant, or refused with one line that names the place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from coach_research.traces import draft, text
from coach_research.traces.text import MAX_LINE
from tests.research.traces.reading import DATA, read, refusal

ROWS = "job,arrival,work,cpu\na,10,5,1\nb,0,7,1\n"


@pytest.mark.parametrize(
    "content",
    [
        ROWS.encode("utf-8-sig"),
        ROWS.replace("\n", "\r\n").encode(),
        ROWS.replace("\n", "\r").encode(),
        gzip.compress(ROWS.encode()),
        ROWS.rstrip("\n").encode(),
        ROWS.replace("a,", '"a",').replace(",", " , ").replace('"a" ', '"a"').encode(),
        b"\n\n" + ROWS.encode() + b"\n  \n",
    ],
    ids=["BOM", "CRLF", "CR", "gzip", "no last newline", "quotes and spaces", "empty lines"],
)
def test_the_same_table_however_it_was_saved(content: bytes, tmp_path: Path) -> None:
    assert [(work.name, work.arrival) for work in read(tmp_path, content).works] == [("b", 0), ("a", 10)]


@pytest.mark.parametrize("kind", ["helios", "pai"])
def test_every_published_table_may_be_compressed(kind: str, tmp_path: Path) -> None:
    packed = gzip.compress((DATA / f"{kind}.csv").read_bytes())
    assert len(read(tmp_path, packed, kind, "log.csv.gz").works) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "trace.csv: the file is empty; its first line should be a header"),
        (b"\n\n", "trace.csv: the file is empty"),
        (b"job,arrival,work,cpu\n", "trace.csv: no job is in it; nothing was simulated"),
        (b"job;arrival;work;cpu\na;10;5;1\n", 'trace.csv:1: fields are separated by ";"; a CSV with "," is expected'),
        (b"job\tarrival\twork\n", "trace.csv:1: fields are separated by tabs"),
        (b"job|arrival|work\n", 'trace.csv:1: fields are separated by "|"'),
        (b"job,arrival\n", 'trace.csv:1: the header has no column work; it begins with "job"; nothing was'),
        (b"job,arrival,work,work\n", "trace.csv:1: column work is there twice"),
        (b"job,arrival,work\n\xff\xfe", "trace.csv:2: this is no UTF-8 text (byte 0xff)"),
        (ROWS.encode("utf-16"), "trace.csv:1: this is no UTF-8 text (byte 0xff)"),
        (b"job,arrival,work\na\0,1,2\n", "trace.csv:2: this is no UTF-8 text (byte 0x00)"),
        (b'job,arrival,work\n"a,1,2\n', "trace.csv:2: this is no CSV (unexpected end of data)"),
        (b'job,arrival,work\n"a"b,1,2\n', "trace.csv:2: this is no CSV"),
        (b"job,arrival,work\n" + b"a" * 20_000, f"trace.csv:2: the line is longer than {MAX_LINE} characters"),
        (gzip.compress(ROWS.encode())[:-12], "the compressed file is broken behind this line"),
        (gzip.compress(ROWS.encode())[:12] + b"\0" * 30, "the compressed file is broken behind this line"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("kind", "content", "meant"),
    [
        ("", (DATA / "helios.csv").read_bytes(), "did you mean helios:trace.csv? Nothing was simulated"),
        ("", (DATA / "pai.csv").read_bytes(), "did you mean pai:trace.csv?"),
        ("helios", (DATA / "pai.csv").read_bytes(), "did you mean pai:trace.csv?"),
        ("pai", ROWS.encode(), "did you mean trace.csv without a prefix?"),
        ("", (DATA / "small.swf").read_bytes(), "did you mean swf:trace.csv?"),
        ("", b"   1      0     10    100    4   -1     -1    4    120    -1  1   1\n", "did you mean swf:trace.csv?"),
        ("", (DATA / "philly.json").read_bytes(), "did you mean philly:trace.csv (JSON) or thesis:trace.csv"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_gets_a_hint(kind: str, content: bytes, meant: str, tmp_path: Path) -> None:
    assert meant in refusal(tmp_path, content, kind)


def test_a_small_file_that_unpacks_to_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_TEXT", 1000)
    packed = gzip.compress(ROWS.encode() + b"\n" * 100_000)
    assert "its text is longer than 1,000 characters" in refusal(tmp_path, packed)


def test_more_jobs_than_can_be_simulated_are_refused_at_the_first_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "MAX_JOBS", 1)
    assert refusal(tmp_path, ROWS).startswith("trace.csv:3: this is job 2; give a part with at most 1 jobs")

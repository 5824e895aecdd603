"""What `coach logs` makes of the lines of functions' logs: those of Coach's own host, of Nuclio's, and of models."""

from __future__ import annotations

import json

from coach.service.function_logs import Entry, entries

OWN = json.dumps({"time": "2026-11-25T12:00:02.500Z", "level": "info", "message": "ready"})
NUCLIO = "26.11.25 12:00:01.300 \x1b[34m(I)\x1b[0m \x1b[37m                processor\x1b[0m Starting {}"


def read(*lines: str) -> list[Entry]:
    return list(entries("worker-0", "\n".join(lines)))


def test_a_line_of_nuclios_processor_has_its_time_and_level() -> None:
    [entry] = read(NUCLIO)
    assert entry == Entry("worker-0", "2026-11-25T12:00:01.300Z", "info", "processor Starting {}")


def test_a_line_that_a_model_prints_has_the_time_of_the_one_before_it() -> None:
    assert [(one.at, one.message) for one in read("first", OWN, "loss 0.3")] == [
        ("", "first"),
        ("2026-11-25T12:00:02.500Z", "ready"),
        ("2026-11-25T12:00:02.500Z", "loss 0.3"),
    ]


def test_what_a_model_prints_does_nothing_to_a_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07red \x1b[31mtext\x1b[0m\x07\x9b31m\r"
    assert [one.message for one in read(hostile)] == ["red text31m"]
    assert read(json.dumps({"message": hostile + "\nnext\tline"}))[0].message == "red text31m\nnext\tline"

"""A pod's log is read once, line by line, whatever happens to the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from coach.core.errors import TemporaryError
from coach.platforms.kubernetes import pod_logs
from coach.platforms.kubernetes.pod_logs import LONGEST_LINE, lines, nanoseconds
from coach.platforms.kubernetes_api.client import Api

STAMP = "2026-11-27T12:00:0{}Z"


def stamp(second: int, fraction: int) -> str:
    return STAMP.format(f"{second}.{fraction:09d}")


class Node:
    """What a kubelet answers: the lines since the second of `sinceTime`. Each answer ends after so many bytes."""

    namespace = "default"

    def __init__(self, log: list[tuple[str, str]], cuts: list[int]) -> None:
        self.log, self.cuts = log, cuts
        self.since: list[str] = []

    async def text(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        self.since.append(query.get("sinceTime", ""))
        begin = nanoseconds(query["sinceTime"]) if "sinceTime" in query else 0
        answer = "".join(f"{at} {text}\n" for at, text in self.log if nanoseconds(at) >= begin).encode()
        if self.cuts:
            cut = self.cuts.pop(0)
            yield answer[: cut // 2]
            yield answer[cut // 2 : cut]
            raise TemporaryError("the API server restarts")
        yield answer


def read(node: Node, after: int = 0) -> list[str]:
    async def main() -> list[str]:
        ended = asyncio.Event()
        ended.set()
        return [line async for _, line in lines(cast("Api", node), "a", ended, after)]

    return asyncio.run(main())


LOG = [
    (stamp(1, 5), "one"),
    (stamp(1, 5), "two at the same time"),
    (stamp(1, 5), "three"),
    (stamp(1, 900), "four"),
    (stamp(3, 0), "five"),
    (stamp(2, 0), "six, after the clock was set back"),
    (stamp(4, 1), "seven"),
]


@pytest.mark.parametrize("cut", [0, 1, 20, 36, 37, 60, 90, 110, 135, 150])
def test_each_line_comes_once_wherever_the_connection_breaks(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "RETRY_SECONDS", 0.0)
    assert read(Node(LOG[:5], [cut, cut // 2, cut])) == [text for _, text in LOG[:5]]


def test_a_node_that_does_not_answer_is_asked_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def main() -> list[str]:
        node = Node(LOG[:2], [0] * 7 + [len(f"{LOG[0][0]} one\n"), 0])
        return [line async for _, line in lines(cast("Api", node), "a")]

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(main()) == ["one", "two at the same time"]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 1, 2], "a line was read, and then none again"


def test_a_clock_that_is_set_back_loses_no_line_of_a_connection_that_lasts() -> None:
    assert read(Node(LOG, [])) == [text for _, text in LOG]


def test_a_log_is_read_on_after_the_line_of_a_time() -> None:
    node = Node(LOG[:5], [])
    assert read(node, after=nanoseconds(LOG[3][0])) == ["five"]
    assert node.since == ["2026-11-27T12:00:01Z"]


def test_of_a_line_without_an_end_the_beginning_is_read() -> None:
    found = read(Node([(stamp(1, 0), "x" * 3 * LONGEST_LINE), (stamp(2, 0), "next")], []))
    assert [line[:4] for line in found] == ["xxxx", "next"]


def test_times_are_read_to_the_nanosecond_in_every_zone() -> None:
    assert nanoseconds("1970-01-01T01:00:01.000000002+01:00") == 1_000_000_002
    assert nanoseconds("1970-01-01T00:00:01Z") == 10**9
    with pytest.raises(ValueError, match="format"):
        nanoseconds("failed to read the file")

"""What a caller may rely on: of Coach's own process, and of Nuclio's processor where that is given."""

import os
import threading
from collections.abc import Iterator

import pytest

from tests.functions.hosting import Template
from tests.functions.serving.asking import NUCLIO, Served, in_a_pod, in_nuclio

pytestmark = pytest.mark.mxnet
#: Bytes of the largest request.
LARGEST = 4 << 20


@pytest.fixture(scope="module", params=["coach", "nuclio"])
def function(
    request: pytest.FixtureRequest, template: Template, mark: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A worker; one for all cases, which change nothing."""
    folder = tmp_path_factory.mktemp("function")
    if request.param == "coach":
        environment = {"COACH_ZYGOTE_TEMPLATE": str(template.path), "COACH_TEST_MARK": mark}
        started = in_a_pod(folder, **environment)
    else:
        if absent := [name for name in NUCLIO[:2] if name not in os.environ]:
            pytest.skip(
                f"{', '.join(absent)}: not set, so Nuclio's processor was not run (docs/project/worker-protocol.md)"
            )
        started = in_nuclio(folder)
    with started as running:
        running.wait_ready()
        yield running


BAD = {"error": {"reason": "BadRequest"}}


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"op": "health"}, 200, {"role": "worker"}),
        (
            {"op": "status", "epoch": "e"},
            200,
            {"epoch": "e", "state": "unknown", "version": 0, "progress": {}},
        ),
        ({"op": "status", "epoch": "e", "wait": 3}, 400, BAD),
        ({"op": "stop", "group": "none"}, 200, {"state": "stopped"}),
        ({"op": "stop"}, 400, BAD),
        ({"op": "start"}, 400, BAD),
        ({"op": "dance"}, 400, BAD),
        (b"{", 400, BAD),
        (b"[]", 400, BAD),
        (b"", 400, BAD),
        (b'{"op": "health"}'.ljust(LARGEST), 200, {"role": "worker"}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_operation_is_answered_in_json(function: Served, body: bytes | dict, status: int, part: dict) -> None:
    answered, answer = function.ask(body)
    assert answered == status, answer
    if status == 400:
        assert answer["error"]["reason"] == "BadRequest" and answer["error"]["message"]
    else:
        assert answer.items() >= part.items()
    assert function.answers["Content-Type"] == "application/json"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/plain", "application/octet-stream"])
def test_the_content_type_does_not_matter(function: Served, kind: str) -> None:
    assert function.ask({"op": "health"}, kind)[0] == 200


def test_a_request_that_is_too_large_is_refused_and_the_next_one_answered(function: Served) -> None:
    try:
        status, _ = function.ask(b" " * (LARGEST + 1))
    except OSError:  # the connection was closed while the request was sent
        status = 413
    assert status in (400, 413)
    assert function.ask({"op": "health"})[0] == 200


def test_health_says_that_it_is_there(function: Served) -> None:
    assert [function.get(path) for path in ("/live", "/ready", "/other")] == [200, 200, 404]
    assert function.get("/__internal/health", function.address) == 200


def test_one_request_at_a_time_is_answered_and_health_meanwhile(function: Served) -> None:
    ended = []

    def wait() -> None:
        function.ask({"op": "status", "epoch": "unknown", "wait": 0})
        ended.append("quick")

    waiting = [threading.Thread(target=wait) for _ in range(8)]
    for thread in waiting:
        thread.start()
    assert function.get("/ready") == 200
    for thread in waiting:
        thread.join(30)
    assert ended == ["quick"] * 8

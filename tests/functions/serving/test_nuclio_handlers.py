"""The functions as Nuclio's Python wrapper calls them: init_context, then handler with the SDK's Context and Event."""

import json
import os
import subprocess

import pytest

from tests.functions.hosting import FUNCTIONS, PYTHON

pytestmark = pytest.mark.mxnet

CALL = """
import json, logging
import nuclio_sdk
from training import nuclio as module
encode = nuclio_sdk.json_encoder.Encoder().encode
context = nuclio_sdk.Context(nuclio_sdk.Logger(logging.WARNING), None, "0", nuclio_sdk.TriggerInfo("http", "http"))
module.init_context(context)
for headers, body in (
    ({"X-Coach-Key": "the-key"}, {"op": "health"}),
    ({b"x-coach-key": b"the-key"}, b'{"op": "health"}'),
    ({"X-Coach-Key": "the-key"}, {"op": "nothing"}),
    (None, {"op": "health"}),
    ({"X-Coach-Key": ""}, {"op": "health"}),
    ({"X-Coach-Key": "another"}, {"op": "health"}),
    ({"X-Other": "the-key"}, {"op": "health"}),
):
    event = nuclio_sdk.Event(body=body, content_type="application/json", method="POST", headers=headers)
    answer = nuclio_sdk.Response.from_entrypoint_output(encode, module.handler(context, event))
    print(json.dumps([answer["status_code"], answer["content_type"], json.loads(answer["body"])]))
"""


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_a_handler_answers_who_shows_its_key_with_status_and_json(role: str) -> None:
    environment = {**os.environ, "COACH_ROLE": role, "COACH_KEY": "the-key"}
    command = [PYTHON, "-c", CALL]
    done = subprocess.run(command, cwd=FUNCTIONS, env=environment, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(status, kind) for status, kind, _ in answers] == [
        (200, "application/json"),
        (200, "application/json"),
        (400, "application/json"),
        *[(403, "application/json")] * 4,
    ]
    assert answers[0][2]["role"] == answers[1][2]["role"] == role
    assert answers[2][2]["error"]["reason"] == "BadRequest"
    assert all("X-Coach-Key" in answer["error"]["message"] for _, _, answer in answers[3:])


def test_without_a_key_it_answers_nobody() -> None:
    environment = {**os.environ, "COACH_ROLE": "worker", "COACH_KEY": ""}
    done = subprocess.run(
        [PYTHON, "-c", CALL], cwd=FUNCTIONS, env=environment, capture_output=True, text=True, check=True
    )
    assert {json.loads(line)[0] for line in done.stdout.splitlines()} == {403}

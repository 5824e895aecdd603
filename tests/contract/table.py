"""The table of requests and answers: loads cases.yaml, makes one function of its handlers, checks an answer."""

import base64
import json
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.contract.engine import Answer, Running

_HEAD = """
import asyncio, datetime, json, math, os, sys, threading
import nuclio_sdk


def init_context(context):
    context.user_data.inits = getattr(context.user_data, "inits", 0) + 1


def handler(context, event):
    return CASES[event.headers["X-Case"]](context, event)


async def async_handler(context, event):
    await asyncio.sleep(0)
    return handler(context, event)


CASES = {}
"""


@dataclass(frozen=True)
class Case:
    """One row. `real` and `differs` are given when the host does otherwise on purpose."""

    group: str
    name: str
    expect: dict[str, Any]
    returns: str | None = None
    code: str | None = None
    request: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    real: dict[str, Any] | None = None
    differs: str | None = None

    @property
    def host(self) -> str:
        """Cases with equal settings run in one function; this names it."""
        return json.dumps(self.config, sort_keys=True)

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}"


def load() -> list[Case]:
    document = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
    cases = [Case(group=group["group"], **row) for group in document for row in group["cases"]]
    names = [case.title for case in cases]
    assert len(set(names)) == len(names), "two cases have one name"
    return cases


CASES = load()


def source(host: str) -> str:
    """The function that holds the handlers of all cases with these settings."""
    text = _HEAD
    for number, case in enumerate(CASES):
        if case.host != host or (case.returns is None and case.code is None):
            continue
        code = case.code if case.code is not None else f"return {case.returns}"
        text += f"\n\ndef case_{number}(context, event):\n{textwrap.indent(code, '    ')}\n\n\n"
        text += f'CASES["{number}"] = case_{number}\n'
    return text


def ask(running: Running, case: Case) -> Answer:
    """Send a case's request."""
    request, number = case.request, str(CASES.index(case))
    if "raw" in request:
        return running.raw(request["raw"].replace("{case}", number).encode("latin-1"))
    body = request["body"].encode() if "body" in request else b"x" * request.get("body_bytes", 0) or None
    headers = {"X-Case": number, **request.get("headers", {})}
    headers = {name: _filled(value) for name, value in headers.items()}
    port = 8082 if request.get("port") == "health" else 8080
    return running.request(request.get("method", "POST"), request.get("path", "/"), body, headers, port)


def _filled(value: str) -> str:
    match = re.fullmatch(r"\{(\d+)\}", value)
    return "x" * int(match.group(1)) if match else value


def check(expect: dict[str, Any], answer: Answer) -> None:
    """Assert that an answer is what a row expects."""
    known = {
        "status",
        "type",
        "body",
        "base64",
        "json",
        "matches",
        "size",
        "headers",
        "absent",
        "logs",
        "logged",
    }
    assert set(expect) <= known, f"unknown keys {set(expect) - known}"
    assert answer.status == expect["status"], answer.text
    if "type" in expect:
        assert answer.header("Content-Type") == expect["type"]
    if "body" in expect:
        assert answer.text == expect["body"]
    if "base64" in expect:
        assert answer.body == base64.b64decode(expect["base64"])
    if "json" in expect:
        assert json.loads(answer.body) == expect["json"]
    if "matches" in expect:
        assert re.search(expect["matches"], answer.text), answer.text
    if "size" in expect:
        assert len(answer.body) == expect["size"]
    for name, value in expect.get("headers", {}).items():
        assert answer.headers.get(name) == value, answer.headers
    for name in expect.get("absent", []):
        assert answer.header(name) is None
    logs = json.loads(answer.header("X-Nuclio-Logs") or "[]")
    if "logs" in expect:
        assert [{key: value for key, value in entry.items() if key != "time"} for entry in logs] == expect[
            "logs"
        ]
        assert all(isinstance(entry["time"], float) for entry in logs)
    if "logged" in expect:
        assert len(logs) == expect["logged"]


def golden(answer: Answer) -> dict[str, Any]:
    """An answer as it is kept: no times, and of a traceback only its last line."""
    headers = {
        name: _settled_logs(value) if name == "X-Nuclio-Logs" else value
        for name, value in answer.headers.items()
    }
    kept: dict[str, Any] = {"status": answer.status, "headers": headers}
    if len(answer.body) > 65536:
        return {**kept, "size": len(answer.body)}
    try:
        text = answer.body.decode("utf-8")
    except UnicodeDecodeError:
        return {**kept, "base64": base64.b64encode(answer.body).decode()}
    kept["body"] = _shortened(text)
    if kept["body"] != text:
        headers.pop("Content-Length", None)
    return kept


def from_golden(kept: dict[str, Any]) -> Answer:
    """The answer again, as far as it was kept."""
    body = b"x" * kept["size"] if "size" in kept else base64.b64decode(kept.get("base64", ""))
    return Answer(kept["status"], kept["headers"], kept["body"].encode() if "body" in kept else body)


def _settled_logs(value: str) -> str:
    entries = json.loads(value)
    for entry in entries:
        entry["time"] = 0.0
        if "traceback" in entry:
            entry["traceback"] = _shortened(entry["traceback"])
    return json.dumps(entries, separators=(",", ":"))


def _shortened(text: str) -> str:
    head, mark, rest = text.partition("Traceback (most recent call last):")
    last = rest.rstrip().rpartition("\n")[2]
    return f"{head}{mark}\n  ...\n{last}\n" if mark else text

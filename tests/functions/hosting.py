"""Hosts a function's real handler in its own process and environment, and talks to it in JSON lines.

A stand-in for the processor only: init_context and handler run with nuclio_sdk's Context and Event.
"""

import itertools
import json
import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ROOT / "functions"
PYTHON = os.environ.get("COACH_FUNCTIONS_PYTHON", str(ROOT / ".venv-functions" / "bin" / "python"))

HOST = """
import importlib.util, json, sys
import nuclio_sdk
spec = importlib.util.spec_from_file_location("handler", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
out = sys.stdout
encode = nuclio_sdk.json_encoder.Encoder().encode
context = nuclio_sdk.Context(nuclio_sdk.Logger(30), None, "0", nuclio_sdk.TriggerInfo("http", "http"))
module.init_context(context)
for line in sys.stdin:
    event = nuclio_sdk.Event(body=json.loads(line), content_type="application/json", method="POST")
    answer = nuclio_sdk.Response.from_entrypoint_output(encode, module.handler(context, event))
    print(json.dumps({"status": answer["status_code"], "body": json.loads(answer["body"])}), file=out, flush=True)
"""


class HostedFunction:
    """One running function."""

    def __init__(self, role: str, address: str, **environment: str) -> None:
        self.role, self.address = role, address
        self.process = subprocess.Popen(
            [PYTHON, "-c", HOST, str(FUNCTIONS / role / "handler.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def post(self, **body: object) -> tuple[int, dict]:
        """Status and body of the handler's answer."""
        self.process.stdin.write(json.dumps(body).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["status"], answer["body"]

    def start(self, **message: object) -> dict:
        status, body = self.post(op="start", **message)
        assert status == 202, body
        return body

    def wait(
        self, epoch: str, states: tuple[str, ...] = ("done", "failed", "stopped"), seconds: float = 60
    ) -> dict:
        """Poll until the epoch is in one of `states`."""
        until = time.monotonic() + seconds
        seen = 0
        while time.monotonic() < until:
            status, body = self.post(op="status", epoch=epoch, wait=0.5, seen=seen)
            assert status == 200, body
            if body["state"] in states:
                return body
            seen = body["version"]
        raise AssertionError(f"{self.role} {self.address}: still {body} after {seconds} s")

    def health(self) -> dict:
        return self.post(op="health")[1]

    def close(self) -> None:
        """End the wrapper the hard way, as a pod's end does."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


_ports = itertools.count(21000 + os.getpid() % 5000, 2)


class Gang:
    """A scheduler, servers and workers, as the handler of Coach would drive them."""

    def __init__(self, workers: int, servers: int, network: int = 30, **environment: str) -> None:
        self.functions = {("scheduler", 0): HostedFunction("scheduler", f"127.0.{network}.1", **environment)}
        for rank in range(servers):
            self.functions["server", rank] = HostedFunction(
                "server", f"127.0.{network}.{10 + rank}", **environment
            )
        for rank in range(workers):
            self.functions["worker", rank] = HostedFunction(
                "worker", f"127.0.{network}.{100 + rank}", **environment
            )
        self.port = next(_ports)

    def members(self, workers: int, servers: int) -> list[tuple[str, int]]:
        ranks = {"scheduler": 1, "server": servers, "worker": workers}
        return [(role, rank) for role, rank in self.functions if rank < ranks[role]]

    def fresh_port(self) -> None:
        self.port = next(_ports)

    def start(self, workers: int, servers: int, **message: object) -> list[tuple[str, int]]:
        """Send every member its start message."""
        members = self.members(workers, servers)
        root = f"{self.functions['scheduler', 0].address}:{self.port}"
        for role, rank in members:
            function = self.functions[role, rank]
            common = {"role": role, "rank": rank, "workers": workers, "servers": servers, "root": root}
            function.start(**common, host=function.address, **message)
        return members

    def epoch(self, workers: int, servers: int, **message: object) -> dict:
        """Run an epoch; the report of worker 0."""
        self.start(workers, servers, **message)
        answers = {rank: self.functions["worker", rank].wait(message["epoch"]) for rank in range(workers)}
        for answer in answers.values():
            assert answer["state"] == "done", answer
        return answers[0]["report"]

    def close(self) -> None:
        for function in self.functions.values():
            function.close()

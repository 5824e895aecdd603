"""1,000 TrainingJobs at once: what handler and scheduler need, and how soon each job trains.

    make control-plane images
    python -m benchmarks.service.many_jobs [JOBS]

A real etcd and kube-apiserver, `coach serve` and Coach's scheduler as processes. What the cluster lacks is played by
this process: nodes, and kubelets that say of a bound pod that it is ready, at an address of this machine where a
function answers that it trains, and goes on doing so, and that keep each pod's log open, which is empty.
Each job is of PyTorch: a scheduler and a worker, two pods.
CPU seconds and memory are of /proc; requests are counted in the API server's audit log, by user agent.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.harness import RESULTS, ROOT, write_table
from scripts import images
from tests.packaging.api_server import ApiServer, api_server, served

JOBS, NODES, STEADY_SECONDS = 1000, 100, 60.0
COMMAND = "python -m benchmarks.service.many_jobs"
CORE, COACH = "/api/v1", "/apis/coach.dev/v1alpha1/namespaces/default/trainingjobs"
PODS = f"{CORE}/namespaces/default/pods"
ROLE = {"cpu": "100m", "memory": "128Mi"}
#: The handler finds the API server as in a pod, so that it reaches functions at their addresses.
SERVE = """
import sys
from pathlib import Path
from coach.platforms.kubernetes_api import client
client._SERVICE_ACCOUNT = Path(sys.argv.pop(1))
from coach.cli.main import main
sys.exit(main())
"""


def job(number: int) -> dict[str, Any]:
    """One that trains without end."""
    spec = {
        "framework": "pytorch",
        "model": {"file": str(ROOT / "functions/models/pytorch/lenet.py:LeNet")},
        "data": {"format": "digits8x8"},
        "target": {"loss": 1e-9, "epochsInARow": 9},
        "budget": {"amount": 100, "currency": "USD"},
        "workers": {"min": 1, "max": 1},
        "servers": {"min": 0, "max": 0},
        "resources": {"scheduler": ROLE, "worker": ROLE},
        "optimizer": {"name": "SGD", "lr": 0.05},
        "image": "coach-functions-pytorch",
    }
    meta = {"name": f"job-{number}", "namespace": "default"}
    return {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta, "spec": spec}


class Kubelets:
    """Nodes, their kubelets, and functions that answer."""

    def __init__(self, server: ApiServer) -> None:
        self._api = httpx.AsyncClient(
            base_url=server.url,
            headers=server.admin.http.headers,
            verify=False,
            timeout=60,
            limits=httpx.Limits(max_connections=None),
        )
        self._api.headers["user-agent"] = "kubelets"
        self._tasks = set[asyncio.Task[None]]()
        self._numbers: dict[str, int] = {}
        self._few = asyncio.Semaphore(16)
        self._versions = collections.Counter[str]()

    async def nodes(self, count: int, certificates: Path) -> None:
        """Make so many, whose kubelets are one."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
        kubelet = await asyncio.start_server(self._log, "127.0.0.1", 0, ssl=tls, backlog=1000)
        port = kubelet.sockets[0].getsockname()[1]
        for number in range(count):
            name = f"n{number}"
            await self._send("POST", f"{CORE}/nodes", {"metadata": {"name": name}})
            status = {
                "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }
            await self._send("PATCH", f"{CORE}/nodes/{name}/status", {"status": status})

    async def follow(self, pods: int) -> None:
        """Answer at one address for each pod; then say of each bound pod that it is ready, until cancelled."""
        addresses = [self._address(number) for number in range(pods)]
        async with await asyncio.start_server(self._function, addresses, 8080, backlog=1000):
            version = "0"
            while True:
                query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "600"}
                async with self._api.stream("GET", f"{CORE}/pods", params=query, timeout=None) as lines:
                    async for line in lines.aiter_lines():
                        change = json.loads(line)
                        version = change["object"]["metadata"].get("resourceVersion", "0")
                        if change["type"] != "DELETED":
                            task = asyncio.create_task(self._changed(change["object"]))
                            self._tasks.add(task)
                            task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _address(number: int) -> str:
        return f"127.77.{number // 250}.{number % 250 + 1}"

    async def _changed(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        async with self._few:
            if "deletionTimestamp" in pod["metadata"]:
                await self._send("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
            elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                address = self._address(self._numbers.setdefault(name, len(self._numbers)))
                status = {
                    "phase": "Running",
                    "podIP": address,
                    "podIPs": [{"ip": address}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                }
                await self._send("PATCH", f"{PODS}/{name}/status", {"status": status})

    async def _send(self, method: str, path: str, body: Any) -> None:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = await self._api.request(method, path, content=json.dumps(body), headers={"content-type": kind})
        if answer.status_code not in (200, 201, 202, 404, 409):
            raise RuntimeError(f"{method} {path}: {answer.text}")

    @staticmethod
    async def _log(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A pod's log, which goes on without a line until the connection is closed."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/plain\r\n\r\n")
            await writer.drain()
            await reader.read()
        writer.close()

    async def _function(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read requests and answer them, until the connection is closed."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
                asked = json.loads(await reader.readexactly(int(fields.get("content-length", 0))) or b"{}")
                if asked.get("op") == "status":
                    await asyncio.sleep(asked.get("wait") or 0.0)
                self._versions[asked.get("epoch", "")] += 1
                version = self._versions[asked.get("epoch", "")]
                said = json.dumps({"state": "training", "version": version, "progress": {"samples": 1, "total": 2}})
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(said)}\r\n\r\n{said}".encode())
                await writer.drain()
        writer.close()


def used(pid: int) -> tuple[float, float]:
    """CPU seconds of a process and of the children it has waited for, and the most memory it had (MiB)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"), int(peak) / 1024


@contextlib.contextmanager
def process(command: list[Any], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of the block."""
    with log.open("w") as file:
        started = subprocess.Popen(
            list(map(str, command)), env={**os.environ, **environment}, stdout=file, stderr=file, cwd=log.parent
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()


def scheduler(server: ApiServer, folder: Path) -> list[Any]:
    """The command of Coach's scheduler."""
    config = yaml.safe_load((ROOT / "deploy/chart/files/second-scheduler.yaml").read_text())
    config["leaderElection"] = {"leaderElect": False}
    config["delayCacheUntilActive"] = False
    config["clientConnection"]["kubeconfig"] = str(server.admin.kubeconfig)
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(config))
    return [images.OUT / "coach-scheduler", "--config", folder / "scheduler.yaml", "--secure-port", "0"]


def handler(server: ApiServer, folder: Path) -> tuple[list[Any], dict[str, str]]:
    """The command of the handler, and its environment."""
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("admin-token")
    (account / "namespace").write_text("default")
    (account / "ca.crt").write_bytes((server.folder / "certificates/apiserver.crt").read_bytes())
    (folder / "token").touch(0o600)
    (folder / "token").write_text("a-token-that-nobody-else-knows\n")
    host, port = server.url.removeprefix("https://").split(":")
    environment = {"COACH_HOME": str(folder / "home"), "COACH_NAMESPACE": "default", "PYTHONPATH": str(ROOT)}
    environment |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBECONFIG": ""}
    words = ["serve", "--platform", "kubernetes", "--port", "0", "--allow", ROOT, "--token", folder / "token"]
    return [sys.executable, "-c", SERVE, account, *words], environment


def trained(server: ApiServer) -> dict[str, str]:
    """The states of all jobs."""
    items = server.admin.get(COACH)["items"]
    return {one["metadata"]["name"]: one.get("status", {}).get("state", "") for one in items}


def requests(log: Path, since: int) -> tuple[collections.Counter[str], int]:
    """Requests that were answered, by who sent them, from this place of the audit log; and its end."""
    with log.open() as file:
        file.seek(since)
        found = collections.Counter(json.loads(line).get("userAgent", "?").split("/")[0] for line in file)
        return found, file.tell()


async def measure(count: int, folder: Path) -> list[dict[str, Any]]:
    """Run it; a row for each phase."""
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"]}
    (folder / "audit.yaml").write_text(yaml.safe_dump({**policy, "rules": [{"level": "Metadata"}]}))
    audit = folder / "audit.log"
    options = {"audit-policy-file": str(folder / "audit.yaml"), "audit-log-path": str(audit)}
    with api_server(folder, options=options) as server:
        for name in ("trainingjob", "trainingbudget", "trainingsearch", "gang"):
            served(server.admin, yaml.safe_load((ROOT / f"deploy/chart/files/{name}-crd.yaml").read_text()))
        kubelets = Kubelets(server)
        await kubelets.nodes(NODES, folder / "certificates")
        following = asyncio.create_task(kubelets.follow(2 * count))
        command, environment = handler(server, folder)
        with (
            process(scheduler(server, folder), folder / "scheduler.log") as places,
            process(command, folder / "handler.log", **environment) as serves,
        ):
            await asyncio.sleep(20)
            assert serves.poll() is None, (folder / "handler.log").read_text()[-4000:]
            rows, place = list[dict[str, Any]](), requests(audit, 0)[1]
            before, began = {pid: used(pid)[0] for pid in (serves.pid, places.pid)}, time.monotonic()

            def row(phase: str) -> None:
                nonlocal place, before, began
                seconds = time.monotonic() - began
                by, place = requests(audit, place)
                now = {pid: used(pid) for pid in (serves.pid, places.pid)}
                rows.append(
                    {
                        "phase": phase,
                        "seconds": seconds,
                        "handler CPU s": now[serves.pid][0] - before[serves.pid],
                        "handler MiB": now[serves.pid][1],
                        "scheduler CPU s": now[places.pid][0] - before[places.pid],
                        "scheduler MiB": now[places.pid][1],
                        "handler requests/s": by["coach"] / seconds,
                        "scheduler requests/s": sum(n for who, n in by.items() if "scheduler" in who) / seconds,
                        "by": dict(by),
                    }
                )
                before, began = {pid: each[0] for pid, each in now.items()}, time.monotonic()

            for number in range(count):
                (await asyncio.to_thread(server.admin.apply, job(number))).raise_for_status()
            applied = time.monotonic() - began
            when = list[float]()
            while len(when) < count:
                assert serves.poll() is None and not following.done(), (folder / "handler.log").read_text()[-4000:]
                states = await asyncio.to_thread(trained, server)
                when += [time.monotonic() - began] * (
                    sum(one in ("Probing", "Training") for one in states.values()) - len(when)
                )
                await asyncio.sleep(1)
            row(f"apply of {count} jobs to all training")
            rows[-1] |= {"applied s": applied, "median s": when[len(when) // 2], "last s": when[-1]}
            await asyncio.sleep(STEADY_SECONDS)
            row("all train")
        following.cancel()
        return rows


def main() -> int:
    """Run it, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="?", type=int, default=JOBS)
    count = parser.parse_args().jobs
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
    with tempfile.TemporaryDirectory(prefix="coach-many-") as folder:
        rows = asyncio.run(measure(count, Path(folder)))
    whole = rows[0]
    last = whole.pop("last s")
    note = (
        f"{count} jobs of two pods each were applied in {whole.pop('applied s'):.0f} s; half of them trained after "
        f"{whole.pop('median s'):.0f} s, the last after {last:.0f} s. {NODES} nodes and their kubelets are played by "
        f"one process, on the same cores as etcd, the API server and what is measured. All requests by sender: "
        + "; ".join(f"{each['phase']}: {json.dumps(each.pop('by'))}" for each in rows)
        + "."
    )
    title = f"{count} TrainingJobs at once"
    write_table(RESULTS / "kubernetes" / "many-jobs.md", title, f"{COMMAND} {count}", rows, note)
    return 0


if __name__ == "__main__":
    sys.exit(main())

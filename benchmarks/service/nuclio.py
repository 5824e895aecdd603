"""What Nuclio costs a job: seconds outside training in an epoch, as plain pods and as Nuclio's functions.

    make kubernetes && python -m benchmarks.service.nuclio

On the cluster of `make test-kubernetes`, with Nuclio's own controller and processor: COACH_NUCLIO_CONTROLLER and its
siblings say where they are (docs/project/worker-protocol.md). The same jobs run as plain pods and as functions, in
turn. Then a gang of 32 functions that do nothing: one function for each member, or one for each role with replicas.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, spread, write_table
from coach.platforms.kubernetes_api.client import Api
from coach.platforms.nuclio import resources
from coach.platforms.nuclio.functions import NUCLIO
from scripts import images
from tests.kubernetes.cluster import Cluster, Unready
from tests.kubernetes.installed import LARGE, Coach, job
from tests.platforms.nuclio.controllers import CONTROLLER, Controller, definitions

COMMAND = "make kubernetes && python -m benchmarks.service.nuclio"
ROUNDS = 3
#: The job changes its number of workers while it probes; its pods are on two nodes then.
CHANGING: dict[str, Any] = {"workers": {"min": 1, "max": 2}, "resources": LARGE}
#: Members of the gang that does nothing: a scheduler, and workers.
MEMBERS = 32
IMAGE = f"coach-nuclio-functions:{images.VERSION}"
EMPTY = "def handler(context, event):\n    return {}\n"


def main() -> int:
    """Measure, and write the tables."""
    if not os.environ.get(CONTROLLER):
        print(f"benchmarks.service.nuclio: {CONTROLLER} is not set; see {__doc__}", file=sys.stderr)
        return 2
    subprocess.run([sys.executable, "scripts/images.py", "nuclio-functions"], cwd=ROOT, check=True)
    measured: dict[tuple[str, str], list[float]] = {}
    try:
        with Cluster() as cluster, tempfile.TemporaryDirectory(prefix="coach-bench-") as folder:
            for name in (*images.STANDARD, "nuclio-functions"):
                cluster.load_image(images.OUT / f"coach-{name}.tar")
            cluster.apply(*definitions())
            coach = Coach(cluster)
            coach.install()
            with Controller(True, cluster.kubeconfig, Path(folder)).running(resources.platform_config()):
                for number in range(ROUNDS):
                    for platform in ("kubernetes", "nuclio"):
                        _run(coach, platform, number, measured)
                gangs = [_gang(cluster, way) for _ in range(2) for way in ("member", "role")]
            coach.uninstall()
    except Unready as error:
        print(f"benchmarks.service.nuclio: {error}", file=sys.stderr)
        return 1
    load = "{:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg())
    note = (
        f"On {datetime.now(UTC):%Y-%m-%d}, Nuclio 1.14.1; load average {load}. Control plane and three nodes\n"
        "share the machine. Time outside training is all since the epoch before that was neither training nor\n"
        "evaluation. The thesis lost 9.3 s an epoch."
    )
    rows = [
        {"seconds": what, "as": platform, **spread(measured[what, platform])}
        for what in dict.fromkeys(what for what, _ in measured)
        for platform in ("kubernetes", "nuclio")
    ]
    rows += [
        {"seconds": f"until {MEMBERS} empty functions are ready, one a {way}", "as": "nuclio"}
        | spread([seconds for which, seconds in gangs if which == way])
        for way in ("member", "role")
    ]
    write_table(RESULTS / "kubernetes" / "nuclio.md", "Seconds that Nuclio costs", COMMAND, rows, note)
    return 0


def _run(coach: Coach, platform: str, number: int, measured: dict[tuple[str, str], list[float]]) -> None:
    """One job that changes its workers; what its epochs lost."""
    nuclio = platform == "nuclio"
    image = ("functions.image.repository=coach-nuclio-functions",) if nuclio else ()
    coach.upgrade(f"platform={platform}", *image)
    name = f"{platform}-{number}"
    began = time.monotonic()
    # Jobs alike would know from the first one which allocation is best, and change nothing.
    batch = {"batchSize": 128 - 8 * number - (4 if nuclio else 0)}
    coach.apply(job(name, target={"loss": 0.45, "epochsInARow": 3}, **batch, **CHANGING))
    coach.training(name, epochs=0)
    measured.setdefault(("from kubectl apply to the first training", platform), []).append(time.monotonic() - began)
    coach.ended(name)
    epochs: list[dict[str, Any]] = coach.ask("show", name)["epochs"]
    for before, one in itertools.pairwise(epochs):
        changed = before["workers"] != one["workers"]
        what = "other workers than the one before" if changed else "the workers of the one before"
        measured.setdefault((f"outside training in an epoch with {what}", platform), []).append(one["outside_seconds"])


def _gang(cluster: Cluster, way: str) -> tuple[str, float]:
    """Seconds from waking parked functions to the last pod's readiness, and their end."""
    made = list(_functions(way))
    cluster.apply(
        {**resources.project(), "metadata": {"name": resources.PROJECT}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "empty"},
            "data": {"empty.py": EMPTY},
        },
    )
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    seconds = asyncio.run(_waken(cluster, made))
    cluster.kubectl("delete", "nucliofunctions", "-l", "bench=empty")
    _until(cluster, lambda: not cluster.get("pods", "-l", "bench=empty")["items"])
    return way, seconds


async def _waken(cluster: Cluster, made: list[dict[str, Any]]) -> float:
    async with await Api.connect() as api:
        path = f"{NUCLIO}/namespaces/default/nucliofunctions"
        await asyncio.gather(*(api.create(path, function) for function in made))
        _until(cluster, lambda: len(cluster.get("deployments", "-l", "bench=empty")["items"]) == len(made))
        began = time.monotonic()
        changes = [
            (
                f"{path}/{one['metadata']['name']}",
                MEMBERS - 1 if one["metadata"]["name"] == "empty-workers" else 1,
            )
            for one in made
        ]
        await asyncio.gather(
            *(
                api.merge(where, {"spec": {"replicas": many}, "status": {"state": resources.WAITING}})
                for where, many in changes
            )
        )
        _until(cluster, lambda: _ready(cluster) == MEMBERS)
        return time.monotonic() - began


def _functions(way: str) -> Iterator[dict[str, Any]]:
    names = ["empty-scheduler"]
    names += [f"empty-worker-{index}" for index in range(MEMBERS - 1)] if way == "member" else ["empty-workers"]
    volume = {"name": "empty", "configMap": {"name": "empty"}}
    mount = {"name": "empty", "mountPath": "/opt/coach/functions/empty.py", "subPath": "empty.py"}
    for name in names:
        yield {
            "apiVersion": "nuclio.io/v1beta1",
            "kind": "NuclioFunction",
            "metadata": {
                "name": name,
                "labels": {"nuclio.io/project-name": resources.PROJECT, "bench": "empty"},
            },
            "spec": {
                "runtime": "python:3.11",
                "handler": "empty:handler",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "replicas": 0,
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                "deploymentStrategy": {"type": "Recreate"},
                "waitReadinessTimeoutBeforeFailure": True,
                "triggers": {"http": {"kind": "http", "name": "http", "numWorkers": 1}},
                "volumes": [{"volume": volume, "volumeMount": mount}],
            },
            "status": {"state": resources.WAITING},
        }


def _ready(cluster: Cluster) -> int:
    pods = cluster.get("pods", "-l", "bench=empty")["items"]
    conditions = [one for pod in pods for one in pod["status"].get("conditions") or ()]
    return sum(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _until(cluster: Cluster, done: Any) -> None:
    deadline = time.monotonic() + 300
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(cluster.kubectl("get", "pods", "-o", "wide"))
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())

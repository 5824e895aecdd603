"""The thesis's question with real jobs: three start at once, in a tight and in a roomy cluster, under each placement.

    python -m benchmarks.thesis_live local                            # functions as processes of this machine
    make kubernetes && python -m benchmarks.thesis_live kubernetes    # pods on the three nodes of make test-kubernetes

LeNet on the digits, one worker and one server, a fixed number of epochs: nothing but the placement differs. `stock` is
the stock kube-scheduler's, `thesis` has the thesis's three rules, `gang` is ours. In the tight case the three nodes
have room for six of the nine pods. Runs in which nothing moves any more are ended. Placements take turns; rows in
results/thesis/live-PLACE.csv, which are not run again.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks import harness
from coach.cli.clusters import PROFILES
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.platforms.base import Platform
from coach.platforms.kubernetes.platform import KubernetesPlatform
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import CORE, Api
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.environment import Functions
from coach.platforms.local.platform import LocalPlatform
from coach.plugins import policy
from coach_research.platforms.kube_scheduler import parse_placement
from coach_research.platforms.pod_by_pod import PodByPodPlatform
from tests.kubernetes.cluster import Cluster, Unready
from tests.kubernetes.installed import Coach

FOLDER = harness.RESULTS / "thesis"
KEYS = ("case", "placement", "repeat")
PLACEMENTS = {"stock": "default", "thesis": "thesis", "gang": "gang"}
#: On this machine pods are created and tried again as in `coach experiment thesis-tightness`.
AS_SIMULATED = "backoff=10,creation=2"
JOBS = ("a", "b", "c")
EPOCHS = 3
#: Cores that each pod requests, of nodes of two.
CASES = {"tight": "850m", "roomy": "400m"}
TIGHTNESS = {"tight": "9 pods, room for 6", "roomy": "9 pods, room for all"}
#: Seconds between two looks at the pods, and seconds without any change after which a run is ended.
LOOK = {"local": 0.25, "kubernetes": 1.0}
STILL = {"local": 10.0, "kubernetes": 45.0}
SHARED = {
    "local": f"Pod by pod: {AS_SIMULATED}. Other programs used the machine, which makes epochs longer for all alike.",
    "kubernetes": "Control plane, nodes and other programs share the machine.",
}
#: Of a job: how many of its pods have a node, and how many have none.
Placed = Mapping[str, tuple[int, int]]


def job(name: str, cores: str, model: str, data: Mapping[str, Any]) -> TrainingJob:
    """One of the three."""
    document = {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "framework": "mxnet",
            "model": {"file": model},
            "data": data,
            "target": {"loss": 1e-6, "epochsInARow": 1},
            "budget": {"unlimited": True},
            "maxEpochs": EPOCHS,
            "policy": {"name": "static", "workers": 1, "servers": 1},
            "resources": {role: {"cpu": cores, "memory": "512Mi"} for role in ("scheduler", "server", "worker")},
            "batchSize": 128,
            "optimizer": {"name": "sgd", "learningRate": 0.05},
            "seed": 1,
        },
    }
    return TrainingJob.from_json(document)


async def run(
    platform: Callable[[Callable[[], float], Path], Platform],
    look: Callable[[Platform, Handler], Awaitable[Placed]],
    jobs: list[TrainingJob],
    place: str,
) -> dict[str, Any]:
    """One run's measures; the jobs that stand still are stopped."""
    home = Path(tempfile.mkdtemp(prefix="coach-bench-"))
    journal = Journal.write(home / "journal.db")
    half, still, deadlocked, before = 0.0, 0.0, False, None
    try:
        made = platform(lambda: handler.now(), home)  # noqa: PLW0108 (not there yet)
        handler = Handler(made, journal, policy("coach"))
        async with handler:
            for one in jobs:
                handler.submit(one, f"{made.checkpoints or home.as_uri()}/{one.name}")
            while len(handler.jobs) < len(jobs) or not all(each.ended for each in handler.jobs.values()):
                await asyncio.sleep(LOOK[place])
                placed = await look(made, handler)
                half += LOOK[place] * sum(some > 0 and none > 0 for some, none in placed.values())
                now = (
                    {name: (each.state, len(each.epochs), len(each.gang.pods)) for name, each in handler.jobs.items()},
                    placed,
                )
                idle = not any(each.attempts.running for each in handler.jobs.values())
                still = still + LOOK[place] if idle and now == before else 0.0
                before = now
                if still >= STILL[place]:
                    deadlocked = True
                    for name in handler.jobs:
                        handler.cancel(name)
                    still = -math.inf
        ended = list(handler.jobs.values())
    finally:
        journal.close()
        shutil.rmtree(home, ignore_errors=True)
    reports = [epoch.report for each in ended for epoch in each.epochs]
    waits = [each.epochs[0].report.train_started_at - each.progress.submitted_at for each in ended if each.epochs]
    return {
        "deadlock": int(deadlocked),
        "half_placed_seconds": round(half, 2),
        "wait_seconds": "" if deadlocked else round(statistics.mean(waits), 2),
        "epoch_seconds": "" if deadlocked else round(statistics.mean(one.train_seconds for one in reports), 3),
        "last_seconds": "" if deadlocked else round(max(map(harness.completion, ended)), 2),
    }


async def pods_here(platform: Platform, handler: Handler) -> Placed:
    """What the platform knows; as gangs all pods have their nodes from the beginning."""
    none = Counter(pod.job for pod in platform.waiting) if isinstance(platform, PodByPodPlatform) else Counter()
    return {name: (len(each.gang.pods) - none[name], none[name]) for name, each in handler.jobs.items()}


def run_here(case: str, placement: str, repeat: int) -> dict[str, Any]:
    """On three virtual nodes of two cores."""
    name = PLACEMENTS[placement]
    nodes, kind = parse_nodes("3x2"), parse_placement(name if name == "gang" else f"{name}:{AS_SIMULATED}")
    functions = Functions.find()

    def make(now: Callable[[], float], home: Path) -> Platform:
        given = (nodes, functions, lambda name: home / "logs" / name, now)
        if kind is None:
            return LocalPlatform(*given)
        return PodByPodPlatform(*given, kind=kind, seed=repeat)

    digits = {"uri": str(harness.ROOT / ".data/mnist-digits"), "format": "digits-json", "size": 1440}
    model = str(harness.ROOT / "functions/models/lenet.py")
    jobs = [job(name, CASES[case], model, digits) for name in JOBS]
    return {
        "case": case,
        "placement": placement,
        "repeat": repeat,
        **asyncio.run(run(make, pods_here, jobs, "local")),
    }


def run_there(case: str, placement: str, repeat: int) -> dict[str, Any]:
    """In pods, with the handler outside the cluster."""
    digits = {"uri": "/var/lib/coach/data/mnist-digits", "format": "digits-json", "size": 1440}
    jobs = [job(f"{name}{repeat}", CASES[case], "/opt/coach/functions/models/lenet.py", digits) for name in JOBS]
    os.environ["COACH_SCHEDULER_NAME"] = PROFILES[PLACEMENTS[placement]] or "coach"

    async def measured() -> dict[str, Any]:
        async with await Api.connect(None, None) as api:

            async def look(_: Platform, handler: Handler) -> Placed:
                path = f"{CORE}/namespaces/{api.namespace}/pods"
                found = (await api.get(path, labelSelector="coach.dev/job"))["items"]
                on: dict[str, list[bool]] = {name: [] for name in handler.jobs}
                for pod in found:
                    if (name := pod["metadata"]["labels"]["coach.dev/job"]) in on:
                        on[name].append(bool(pod["spec"].get("nodeName")))
                return {name: (sum(each), len(each) - sum(each)) for name, each in on.items()}

            def make(now: Callable[[], float], home: Path) -> Platform:
                settings = Settings.read("thesis-live")
                return KubernetesPlatform(
                    lambda: Api.connect(None, None), settings, lambda name: home / "logs" / name, now
                )

            return await run(make, look, jobs, "kubernetes")

    return {"case": case, "placement": placement, "repeat": repeat, **asyncio.run(measured())}


@contextmanager
def cluster() -> Iterator[None]:
    """The three nodes, with Coach's schedulers."""
    from scripts import images

    with Cluster() as started:
        for name in images.STANDARD:
            started.load_image(images.OUT / f"coach-{name}.tar")
        installed = Coach(started)
        installed.install()
        os.environ["KUBECONFIG"] = str(started.kubeconfig)
        try:
            yield
        finally:
            installed.uninstall()


def write(rows: harness.Rows, place: str) -> None:
    """A row a case and placement; Welch's t against the stock scheduler's seconds an epoch."""
    table = []
    for case in CASES:
        for placement in PLACEMENTS:
            of = rows.of(case=case, placement=placement)
            if not of:
                continue
            stuck = sum(int(row["deadlock"]) for row in of)
            table.append(
                {
                    "case": f"{case} ({TIGHTNESS[case]})",
                    "placement": placement,
                    "runs": len(of),
                    "stand still": stuck,
                    "with a half-placed job": sum(float(row["half_placed_seconds"]) > 2 * LOOK[place] for row in of),
                    "half-placed, s of a job": _mean(of, "half_placed_seconds"),
                    "s until training": _mean(of, "wait_seconds"),
                    "s an epoch": _mean(of, "epoch_seconds"),
                    "last job, s": _mean(of, "last_seconds"),
                    "p of s an epoch": _welch(of, rows.of(case=case, placement="stock")),
                }
            )
    harness.write_table(
        FOLDER / f"live-{place}.md",
        f"The thesis's question with real jobs: {'pods of a cluster' if place == 'kubernetes' else 'processes'}",
        f"python -m benchmarks.thesis_live {place}",
        table,
        "Means of runs that end, with standard deviations. Half-placed: a job has a node for some of its pods only, "
        f"for more than {2 * LOOK[place]:g} s. A run stands still when nothing changed for "
        f"{STILL[place]:g} s and no epoch runs. {SHARED[place]} p: Welch's t against the stock scheduler's runs.",
    )


def _values(rows: list[dict[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row[key] != ""]


def _mean(rows: list[dict[str, Any]], key: str) -> str:
    values = _values(rows, key)
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "-"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _welch(rows: list[dict[str, Any]], stock: list[dict[str, Any]]) -> str:
    mine, theirs = _values(rows, "epoch_seconds"), _values(stock, "epoch_seconds")
    if rows == stock or min(len(mine), len(theirs)) < 2:
        return "-"
    return f"{stats.ttest_ind(mine, theirs, equal_var=False).pvalue:.2f}"


def main() -> int:
    """Run what is missing."""
    parser = harness.piecewise(__doc__, repeats=8)
    parser.add_argument("place", choices=("local", "kubernetes"))
    options = parser.parse_args()
    rows = harness.Rows(FOLDER / f"live-{options.place}.csv", KEYS)
    wanted = [
        (case, placement, repeat) for repeat in range(options.repeats) for case in CASES for placement in PLACEMENTS
    ]
    one = {"local": run_here, "kubernetes": run_there}[options.place]
    measure = partial(harness.measure, rows, wanted, one, partial(write, rows, options.place), options)
    if options.place == "local" or options.tables:
        measure()
        return 0
    try:
        with cluster():
            measure()
    except Unready as error:
        print(f"benchmarks.thesis_live: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

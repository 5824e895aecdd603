"""How far policies are from the least mean completion time, on instances small enough to try everything.

    python -m benchmarks.decisions.completion_oracle     # two minutes; results/completion-oracle.md

Three jobs start at once on one node of 8, 12 or 16 cores, a core a pod. Lengths and speeds (parameter-server form,
as in `benchmarks.decisions.allocation`) are random and known, and a change costs nothing: what differs is the sharing
alone. The oracle is `tests.oracles.completion_times`. *gap*: how much longer the mean completion time is; *ahead of
optimus*: how much shorter, on the same jobs. Means with their 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import t

from benchmarks.decisions.allocation import Job, random_job, run_to_the_end
from coach import collector
from coach.core.cluster import Allocation, Node, Resources
from coach.core.estimation.forms import FloatArray
from coach.core.policies import ClusterView
from coach.plugins import policy
from tests.oracles.completion_times import least_mean_completion

FILE = Path(__file__).parents[2] / "results" / "completion-oracle.md"
POLICIES = ("optimus", "coach", "coach:mean-completion")
JOBS, CORES, INSTANCES, MOST = 3, (8, 12, 16), 60, 8
#: Cores of the three schedulers, beside those of workers and servers.
SCHEDULERS = 0.1 * JOBS


def jobs_of(seed: int) -> list[Job]:
    """The jobs of one instance."""
    random = np.random.default_rng([34, seed])
    return [random_job(number, random, MOST) for number in range(JOBS)]


def speeds_by_pods(job: Job, pods: int) -> FloatArray:
    """The fastest speed with exactly 0, 1, ... `pods` workers and servers together, epochs/s; 0 where there is none."""
    found = np.zeros(pods + 1)
    for workers in range(1, job.maximum.workers + 1):
        for servers in range(1, job.maximum.servers + 1):
            if workers + servers <= pods:
                at = workers + servers
                found[at] = max(found[at], job.speed(Allocation(workers, servers)))
    return found


def measured(cores: int) -> dict[str, FloatArray]:
    """Mean completion times in parts of the oracle's, by policy: one for each instance."""
    cluster = ClusterView((Node("node", Resources(cores + SCHEDULERS + 1e-6, 1e3)),))
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in range(INSTANCES):
        jobs = jobs_of(seed)
        epochs = [job.remaining_epochs.expected for job in jobs]
        least = least_mean_completion(epochs, [speeds_by_pods(job, cores) for job in jobs], cores)
        for name in POLICIES:
            found[name].append(run_to_the_end(jobs_of(seed), cluster, policy(name))[0] / least)
    return {name: np.array(values) for name, values in found.items()}


def interval(values: Sequence[float] | FloatArray) -> str:
    """The mean with its 95 % interval, in per cent."""
    percent = 100.0 * np.asarray(values)
    half = float(t.ppf(0.975, len(percent) - 1)) * float(percent.std(ddof=1)) / len(percent) ** 0.5
    return f"{percent.mean():+.2f} ± {half:.2f} %"


def table() -> Iterator[str]:
    """Markdown, a row a cluster and policy."""
    yield "| cores | policy | instances | gap | largest gap | ahead of optimus |"
    yield "|-|-|-|-|-|-|"
    for cores in CORES:
        found = measured(cores)
        for name, values in found.items():
            ahead = "-" if name == POLICIES[0] else interval(1.0 - values / found[POLICIES[0]])
            yield (
                f"| {cores} | `{name}` | {len(values)} | {interval(values - 1.0)} | "
                f"{100.0 * (values.max() - 1.0):.1f} % | {ahead} |"
            )


def main() -> None:
    """Measure, print and write."""
    collector.look_seldom()
    by = "Written by `python -m benchmarks.decisions.completion_oracle`, whose text says what is measured."
    text = "\n".join(["# Mean completion times and the least", "", by, "", *table()]) + "\n"
    FILE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""How long DL²'s network takes: one inference for 40 jobs, and a whole decision. Writes results/dl2-inference.md.

OMP_NUM_THREADS=1 python -m benchmarks.decisions.dl2_inference
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from coach.plugins import policy
from coach_research.dl2.published import FlatForward, flat
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.policies.dl2.network import Inference
from coach_research.policies.dl2.policy import Dl2Policy
from coach_research.scenario import load

RESULT = Path(__file__).resolve().parents[2] / "results" / "dl2-inference.md"
JOBS, REPEATS = 40, 5000


def timed(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and 99th percentile, ms."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return float(np.median(times)), float(np.quantile(times, 0.99))


def main() -> None:
    """Measure and write."""
    chosen = policy("dl2")
    assert isinstance(chosen, Dl2Policy)
    network = chosen.network
    rng = np.random.default_rng(1)
    features = rng.random((JOBS, len(network.weights["w0"]))).astype(np.float32)
    one = np.array([0])
    inference = Inference(network.weights, 1, JOBS)
    inference.start(0, features, np.ones(JOBS, bool))

    def infer() -> None:
        inference.change(one, one, features[:1])
        jobs, void = inference.scores()
        if jobs[0].max() > void[0]:
            jobs.argmax()

    weights = flat(6 * JOBS, 3 * JOBS + 1, rng)
    inputs = rng.random((1, 6 * JOBS)).astype(np.float32)

    def published() -> None:
        FlatForward(weights, inputs).outputs.argmax()

    parameters = load("dl2-baselines").parameters
    spans: list[float] = []
    allocate = Dl2Policy.allocate

    def watched(self: Dl2Policy, jobs: object, cluster: object) -> object:
        began = time.perf_counter()
        found = allocate(self, jobs, cluster)  # type: ignore[arg-type]
        spans.append(1e3 * (time.perf_counter() - began))
        return found

    Dl2Policy.allocate = watched  # type: ignore[assignment, method-assign]
    measured(parameters, 101, each_slot("dl2"))
    rows = [
        ("one inference, Coach's network, after one job changed", *timed(infer, REPEATS)),
        (
            "one inference, the published network",
            *timed(published, REPEATS),
        ),
        (
            "one decision in the simulator, up to 40 jobs",
            float(np.median(spans)),
            float(np.quantile(spans, 0.99)),
        ),
    ]
    lines = [
        "# How long DL²'s network takes", "",
        f"NumPy, one core, {JOBS} jobs; the goal for an inference is 0.2 ms, the paper says less than 3 ms.", "",
        "| what | median, ms | 99 %, ms |", "| --- | ---: | ---: |",
        *(f"| {name} | {median:.3f} | {high:.3f} |" for name, median, high in rows), "",
    ]  # fmt: skip
    RESULT.write_text("\n".join(lines))
    print("\n".join(lines[4:]), end="")


if __name__ == "__main__":
    main()

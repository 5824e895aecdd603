"""Coach on one machine, compared with static choices and the thesis's way in one run.

    python -m benchmarks.training.one_machine [JOB_FILE] [--repeats 3]

Each repeat runs the job under Coach, the same epochs in the thesis's way, and the job at every static (w,s); the
tables under results/one-machine are medians over the repeats, written anew after each. All on ps-lite, as the thesis;
`benchmarks.training.demo_servers` compares it with elastic servers.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks import harness
from benchmarks.training import overhead, static_grid, thesis_baseline

COMMAND = "python -m benchmarks.training.one_machine"


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", nargs="?", default="jobs/lenet-digits.yaml")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    (spec,) = (harness.changed(job, parameterServer="ps-lite") for job in harness.load(options.job))
    outside: list[dict[str, Any]] = []
    shares: list[float] = []
    grid: list[dict[str, Any]] = []
    ways: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        (job,) = harness.run([spec])
        outside += overhead.rows_of(job, repeat)
        shares.append(overhead.share_of(job))
        grid.append(static_grid.row_of("coach", repeat, job))
        print(grid[-1], f"{shares[-1]:.1%} outside training", file=sys.stderr, flush=True)
        ways += thesis_baseline.rows_of(spec, job, repeat)
        print(ways[-1], file=sys.stderr, flush=True)
        for workers, servers in static_grid.points(spec):
            (finished,) = harness.run([harness.static(spec, workers, servers)])
            grid.append(static_grid.row_of(f"static:{workers}x{servers}", repeat, finished))
            print(grid[-1], file=sys.stderr, flush=True)
        overhead.write(spec.name, outside, shares, COMMAND)
        thesis_baseline.write(spec.name, ways, COMMAND)
        static_grid.write(spec, grid, COMMAND)
    for name in ("overhead", "thesis-way", "static-grid"):
        print((harness.RESULTS / "one-machine" / f"{name}.md").read_text())


if __name__ == "__main__":
    main()

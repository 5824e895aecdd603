"""How near the simulator comes to reality: each recorded run of `coach run` predicted from the others.

    python -m benchmarks.fidelity record FOLDER FILE...            # COACH_HOME/journal.db -> FOLDER/<name>.jsonl.gz
    python -m benchmarks.fidelity predict [FOLDER] [--write results/simulation]

The truth of a predicted job (speeds, curve, what lies between epochs) is learned from the other runs alone. Its file,
the points known from earlier jobs and the cluster are those of the recorded run. Then the reducer lives the run in
virtual time, with the noise of several seeds, and the mean of what it takes is set beside what it took. "From itself"
learns from the predicted run too: what is left then is the driver's own error; the rest is how much the machine
differed from run to run. Besides, the recorded events of every journal are fed to a reducer again: its actions have to
be the recorded ones.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.policies import policy
from coach.core.reducer import Reducer
from coach.handler.codec import decode, encode
from coach.handler.journal import Journal
from coach.simulation.driver import Driver
from coach.simulation.measured import Run, learn, runs_of

FOLDER = Path("results/simulation/journals")
#: Cores of the machine that the runs were recorded on.
CORES = 2.0
SEEDS = 5


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal of one `coach run`."""

    name: str
    records: list[Any]
    runs: dict[str, Run]

    @property
    def seconds(self) -> dict[str, float]:
        """From submission to end, by job."""
        return {name: (run.job.ended_at or 0.0) - run.job.submitted_at for name, run in self.runs.items()}


def record(folder: Path, files: Sequence[Path]) -> None:
    """Keep journals as lines of JSON, without the paths of the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(files, 1):
        journal = Journal.read(path)
        lines = []
        for _, one in journal.records():
            body = re.sub(
                r"file://[^\"]*?/(functions|\.data|checkpoints|jobs)/", r"file:///coach/\1/", encode(one)
            )
            lines.append(json.dumps([type(one).__name__, json.loads(body)]))
        journal.close()
        with gzip.GzipFile(folder / f"run-{number}.jsonl.gz", "wb", mtime=0) as file:
            file.write("\n".join(lines).encode())


def read(folder: Path) -> list[Recorded]:
    """All journals of a folder."""
    found = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            records = [decode(name, json.dumps(body)) for name, body in map(json.loads, file)]
        found.append(Recorded(path.name.partition(".")[0], records, runs_of(records)))
    return found


def same_actions(recorded: Recorded) -> tuple[int, int]:
    """Actions that a reducer takes on the recorded events, and how many of them, in order, are the recorded ones."""
    reducer = Reducer(policy("coach"))
    ours = [action for one in recorded.records if isinstance(one, ev.Event) for action in reducer.react(one)]
    theirs = [one for one in recorded.records if isinstance(one, act.Action)]
    return max(len(ours), len(theirs)), sum(a == b for a, b in zip(ours, theirs, strict=False))


def predict(recorded: Recorded, others: Sequence[Recorded]) -> dict[str, float]:
    """Mean seconds of each job in virtual time, with truths learned from the `others` (alone ones, if there are)."""
    lives = [_live(recorded, others, seed) for seed in range(SEEDS)]
    return {name: statistics.fmean(life[name] for life in lives) for name in recorded.runs}


def _live(recorded: Recorded, others: Sequence[Recorded], seed: int) -> dict[str, float]:
    started = next(one for one in recorded.records if isinstance(one, ev.HandlerStarted))
    submitted = {one.job: one for one in recorded.records if isinstance(one, ev.JobSubmitted)}
    alike = {name: [other.runs[name] for other in others if name in other.runs] for name in submitted}
    alone = {name: [other.runs[name] for other in others if set(other.runs) == {name}] for name in submitted}
    # Speeds of jobs that had others beside them are slowed by those already.
    cores = CORES if all(alone.values()) else math.inf
    driver = Driver(started.nodes, policy("coach"), seed=seed, machine_cores=cores, begin=started.at)
    for name, one in submitted.items():
        driver.submit_at(
            one.at,
            name,
            one.spec,
            learn(alone[name] or alike[name]),
            known_points=one.known_points,
            known_epochs=one.known_epochs,
        )
    driver.run()
    return {name: ended.ended - ended.submitted for name, ended in driver.ended.items()}


def rows(folder: Path) -> list[dict[str, Any]]:
    """A row for each job of each run."""
    journals = read(folder)
    table = []
    for recorded in journals:
        others = [other for other in journals if other is not recorded]
        actions, same = same_actions(recorded)
        predicted, replayed = predict(recorded, others), predict(recorded, [recorded])
        for name, seconds in recorded.seconds.items():
            table.append(
                {
                    "run": recorded.name, "job": name, "jobs_at_once": len(recorded.runs), "actions": actions,
                    "same_actions": same, "epochs": len(recorded.runs[name].job.epochs), "seconds": seconds,
                    "predicted_seconds": predicted[name], "error": predicted[name] / seconds - 1,
                    "replayed_seconds": replayed[name], "replay_error": replayed[name] / seconds - 1,
                }
            )  # fmt: skip
    return table


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=("record", "predict"))
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.do == "record":
        record(options.folder, options.files)
        return
    table = rows(options.folder)
    lines = [
        "| run | job | epochs | took | from the others | error | from itself | error | same actions |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['run']} | {row['job']} | {row['epochs']} | {row['seconds']:.2f} s | "
        f"{row['predicted_seconds']:.2f} s | {row['error']:+.1%} | {row['replayed_seconds']:.2f} s | "
        f"{row['replay_error']:+.1%} | {row['same_actions']} of {row['actions']} |"
        for row in table
    ]
    print("\n".join(lines))
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "fidelity.md").write_text("\n".join(lines) + os.linesep)
        with (options.write / "fidelity.csv").open("w", newline="") as file:
            out = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            out.writeheader()
            out.writerows(table)


if __name__ == "__main__":
    main()

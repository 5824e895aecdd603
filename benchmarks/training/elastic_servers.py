"""Elastic parameter servers compared with ps-lite, side by side: steps a second, and what a change costs.

    python -m benchmarks.training.elastic_servers [--rounds 5] [--seconds 10] [--speed]

Real functions on this machine, one thread each. Writes tables to results/elastic: speed.md, changes.md (in the form of
DL2's Figure 13: what training waits for when servers are added, compared with a restart from a checkpoint), steps.md
(DL2's Figure 14: the four steps by the size of the model).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, write_table
from tests.functions.hosting import Elastic, Gang, Template, eventually

COMMAND = "python -m benchmarks.training.elastic_servers"
MLP = """
    from mxnet import gluon

    def net():
        layers = gluon.nn.HybridSequential()
        layers.add(gluon.nn.Flatten())
        for units in ({0}, {0}):
            layers.add(gluon.nn.Dense(units, activation="relu"))
        layers.add(gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""
LENET = "LeNet, 0.4 million weights"
TEN = "perceptron, 10 million weights"
#: Units of both hidden layers by name.
PERCEPTRONS = {"perceptron, 1 million weights": 680, TEN: 2800, "perceptron, 25 million weights": 4600}
NOTE = """Pause: the longer one of a worker's update and of the servers' migration, in which workers may compute
their next gradients. Restart: from the last step before until the first step after, the new processes forked already
importing, the checkpoint written and read."""
SIZES = ((1, 1), (2, 1), (2, 2))


class Bench:
    """Functions of this machine, and the epochs that they run."""

    def __init__(self, folder: Path, gang: Gang) -> None:
        self.folder, self.gang = folder, gang
        self._epochs = 0

    def message(self, model: str, **changes: Any) -> dict[str, Any]:
        """An epoch's start message."""
        self._epochs += 1
        file = ROOT / "functions/models/lenet.py"
        if model in PERCEPTRONS:
            file = self.folder / f"{PERCEPTRONS[model]}.py"
            file.write_text(textwrap.dedent(MLP.format(PERCEPTRONS[model])))
        name = f"epoch-{self._epochs}"
        return {
            "epoch": name,
            "model": {"uri": str(file)},
            "data": {"uri": str(ROOT / ".data/mnist-digits"), "format": "digits-json"},
            "batch_size": 128,
            "optimizer": {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9},
            "deadline": 600,
            "evaluate": False,
            "weights_out": f"file://{self.folder}/{name}.npz",
            **changes,
        }

    def fresh(self) -> None:
        """End the group, and begin with another."""
        self.gang.stop()
        self.gang.fresh_group()

    def speed(self, model: str, workers: int, servers: int, samples: int, *, elastic: bool) -> float:
        """Steps a second, after the first one."""
        message = self.message(model, samples=samples, elastic=elastic)
        if elastic:
            message["wait_for_all"] = True
        report = self.gang.epoch(workers, servers, **message)
        self.fresh()
        steps = (report["samples"] - report["warm_up_samples"]) / 128
        return steps / (report["train_seconds"] - report["warm_up_seconds"])

    def changes(self, model: str, rounds: int) -> Iterator[tuple[str, dict]]:
        """What the scheduler says of changes inside one epoch, by their names."""
        group = Elastic(self.gang)
        group.start([0], self.message(model, samples=10**8, elastic=True), 1)
        group.until_members(0, seconds=120)
        for _ in range(rounds):
            for added in (1, 2, 3):
                for rank in range(1, added + 1):
                    group.serve(rank)
                group.resize(0, servers=list(range(added + 1)))
                yield f"add {added} servers".replace("1 servers", "1 server"), settled(group, [0], added + 1)
                group.resize(0, servers=[0])
                change = settled(group, [0], 1)
                if added == 1:
                    yield "remove 1 server", change
            group.join(1)
            group.resize(0, 1, servers=[0])
            yield "add 1 worker", settled(group, [0, 1], 1)
            group.resize(0, servers=[0])
            yield "remove 1 worker", settled(group, [0], 1)
            group.left(1)
        self.fresh()

    def restart(self, model: str, added: int) -> float:
        """Milliseconds in which ps-lite trains nothing when servers are added: from the last step to the first one."""
        samples = 3 * 128
        first = self.message(model, samples=samples)
        before = self.gang.epoch(1, 1, **first)
        self.fresh()
        later = self.message(model, samples=samples, position=samples, weights_in=first["weights_out"])
        after = self.gang.epoch(1, 1 + added, **later)
        self.fresh()
        return 1000 * (after["train_started_at"] - before["train_ended_at"])


def settled(group: Elastic, workers: list[int], servers: int) -> dict:
    """The change after which the group has these, and a moment of training."""

    def last() -> dict:
        return (group.view().get("changes") or [{}])[-1]

    wanted = (workers, list(range(servers)))
    eventually(lambda: (last().get("workers"), last().get("servers")) == wanted and "at" in last(), 120)
    time.sleep(0.5)
    return last()


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="about how long each speed is measured")
    parser.add_argument("--speed", action="store_true", help="write speed.md alone")
    options = parser.parse_args()
    results = RESULTS / "elastic"
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        template = Template(Path(folder) / "template.sock")
        gang = Gang(2, 4, network=61, COACH_ZYGOTE_TEMPLATE=str(template.path))
        other = Template(Path(folder) / "other.sock", COACH_SHARED_MEMORY="0")
        apart = Gang(2, 2, network=62, COACH_ZYGOTE_TEMPLATE=str(other.path))
        try:
            bench = Bench(Path(folder), gang)
            speeds(bench, Bench(Path(folder), apart), options.rounds, options.seconds, results / "speed.md")
            if not options.speed:
                pauses(bench, options.rounds, results)
        finally:
            gang.close()
            apart.close()
            template.close()
            other.close()


def speeds(bench: Bench, apart: Bench, rounds: int, seconds: float, file: Path) -> None:
    """All kinds of servers, one after the other in each round; `apart`: functions that share no memory."""
    rows = []
    kinds = {"ps-lite": (bench, False), "by messages": (apart, True), "elastic": (bench, True)}
    for model, a_second in ((LENET, 15), (TEN, 6)):
        samples = 128 * max(3, int(seconds * a_second))
        for workers, servers in SIZES:
            found: dict[str, list[float]] = defaultdict(list)
            for number in range(rounds):
                for kind in list(kinds)[:: -1 if number % 2 else 1]:
                    of, elastic = kinds[kind]
                    found[kind].append(of.speed(model, workers, servers, samples, elastic=elastic))
            middle = {kind: statistics.median(of) for kind, of in found.items()}
            row = {"model": model, "workers x servers": f"{workers}x{servers}"}
            row |= {"ps-lite": f"{middle['ps-lite']:.2f}", "elastic, by messages": f"{middle['by messages']:.2f}"}
            row |= {"elastic": f"{middle['elastic']:.2f}", "ratio": f"{middle['elastic'] / middle['ps-lite']:.2f}"}
            pairs = sorted(a / b for a, b in zip(found["elastic"], found["ps-lite"], strict=True))
            rows.append(row | {"ratio of rounds": f"{pairs[0]:.2f} to {pairs[-1]:.2f}"})
            print(rows[-1], flush=True)
    write_table(file, "Steps a second", COMMAND, rows)


def pauses(bench: Bench, rounds: int, results: Path) -> None:
    """What changes cost, and their steps."""
    found: dict[tuple[str, str], list[dict]] = defaultdict(list)
    restarts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for model in (LENET, *PERCEPTRONS):
        for change, steps in bench.changes(model, rounds):
            found[model, change].append(steps)
        for added in (1, 2, 3):
            of = restarts[model, f"add {added} servers".replace("1 servers", "1 server")]
            of += [bench.restart(model, added) for _ in range(max(1, rounds // 2))]
    rows = []
    for (model, change), of in found.items():
        waits = [max(each["pause_ms"], each.get("migration_ms", 0.0)) for each in of]
        row = {"model": model, "change": change, "n": len(of)}
        row |= {"pause ms": f"{statistics.median(waits):.0f}", "longest": f"{max(waits):.0f}"}
        restart = restarts.get((model, change))
        rows.append(row | {"ps-lite's restart ms": f"{statistics.median(restart):.0f}" if restart else "-"})
        print(rows[-1], flush=True)
    write_table(results / "changes.md", "What training waits for at a change", COMMAND, rows, NOTE)
    columns = {"registration_ms": "registration ms", "assignment_ms": "assignment ms"}
    columns |= {"migration_ms": "migration ms", "pause_ms": "worker update ms"}
    steps = [
        {"model": model}
        | {
            name: f"{statistics.median(each.get(key, 0.0) for each in found[model, 'add 1 server']):.1f}"
            for key, name in columns.items()
        }
        for model in (LENET, *PERCEPTRONS)
    ]
    write_table(results / "steps.md", "The four steps of adding a server", COMMAND, steps)


if __name__ == "__main__":
    main()

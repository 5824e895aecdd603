"""What a change of an elastic PyTorch group costs the workers that stay, and how soon survivors of a kill go on.

    python -m benchmarks.pytorch.changes [ROUNDS [FILE]]

Real functions on this machine, each worker with one thread, Adam, a small model and one of 10 million weights (40 MB,
with 80 MB of Adam's) by all-reduce, and the large one on an elastic server, which keeps Adam's: a worker that joins
gets slices of the weights from it. Beside it torchrun on a training of the same sizes: where a process dies, it starts
all of them again; where torchrun does not start (Debian's 1.13 does not on Python 3.11), its row is left out. Writes
results/pytorch/changes.md.
"""

import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import defaultdict
from pathlib import Path

from coach.platforms.local import pytorch_runtime
from tests.functions.hosting import ROOT, Gang, Template

WRITTEN = ROOT / "results" / "pytorch" / "changes.md"
MODEL = """
    from torch import nn

    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(784, {width}), nn.ReLU(), nn.Linear({width}, {out}), nn.ReLU(),
                             nn.Linear({out}, 10))

    loss = nn.CrossEntropyLoss()
"""
#: Name -> sizes of the two hidden layers, and servers.
MODELS = {
    "small (27,000 weights)": (32, 32, 0),
    "10 million weights": (2560, 3072, 0),
    "10 million weights, 1 server": (2560, 3072, 1),
}
#: After which processes that torchrun has started again count as hanging.
RESTART_SECONDS = 45.0
TORCHRUN = "kill 1 of 3, torchrun"
CASES = ("1 -> 2", "2 -> 3", "3 -> 2", "2 -> 1", "kill 1 of 3", TORCHRUN)


class Run:
    """One group in one endless epoch."""

    def __init__(self, gang: Gang, folder: Path, sizes: tuple[int, int, int]) -> None:
        gang.fresh_group()
        self._gang = gang
        file = folder / "model.py"
        file.write_text(textwrap.dedent(MODEL.format(width=sizes[0], out=sizes[1])))
        self._message = {
            "epoch": f"epoch of {gang.group}",
            "group": gang.group,
            "key": "a-key-of-nobody-else",
            "elastic": True,
            "servers": sizes[2],
            "root": f"{gang.functions['scheduler', 0].address}:{gang.port}",
            "deadline": 3000,
            "model": {"uri": str(file)},
            "data": {"uri": str(ROOT / ".data/mnist-digits"), "format": "digits-json"},
            "batch_size": 32,
            "optimizer": {"name": "Adam", "learning_rate": 0.0001},
            "samples": 10**9,
        }
        self._start("scheduler", 0)
        for rank in range(sizes[2]):
            self._start("server", rank)
        self._start("worker", 0)
        self.until(0)

    def _start(self, role: str, rank: int) -> None:
        function = self._gang.functions[role, rank]
        function.start(role=role, rank=rank, host=function.address, workers=1, **self._message)

    def join(self, rank: int, *all_ranks: int) -> dict:
        """Start a worker; the change that brought it in. The group is told when the worker has loaded."""
        self._start("worker", rank)
        return self.resize(*all_ranks)

    def resize(self, *ranks: int) -> dict:
        """Have these workers make up the group; the change."""
        answer = self._gang.functions["scheduler", 0].post(
            op="resize", group=self._message["group"], members=list(ranks)
        )
        assert answer[0] == 200, answer
        before = self._status("scheduler", 0)["progress"].get("members", [])
        change = self.until(*ranks)
        for rank in set(before) - set(ranks):
            while self._status("worker", rank)["state"] == "training":
                time.sleep(0.02)
        return change

    def until(self, *ranks: int, seconds: float = 60) -> dict:
        """Wait until these train, and a moment more; the last change."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            progress = self._status("scheduler", 0)["progress"]
            if sorted(progress.get("members", [])) == sorted(ranks):
                time.sleep(0.5)
                return progress["changes"][-1]
            time.sleep(0.02)
        raise AssertionError(f"{ranks} do not train: {self._status('scheduler', 0)}")

    def _status(self, role: str, rank: int) -> dict:
        return self._gang.functions[role, rank].post(op="status", epoch=self._message["epoch"])[1]

    def kill(self, rank: int, *left: int) -> float:
        """Milliseconds from the signal until the survivors, in their new view, take up the step again."""
        pid = self._gang.functions["worker", rank].health()["child_pid"]
        began = time.time()
        os.kill(pid, signal.SIGKILL)
        return 1000 * (self.until(*left)["at"] - began)


def measure(gang: Gang, folder: Path, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of each case, by model."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, sizes in MODELS.items():
        run = Run(gang, folder, sizes)
        for _ in range(rounds):
            found["1 -> 2", name].append(run.join(1, 0, 1)["pause_ms"])
            found["2 -> 3", name].append(run.join(2, 0, 1, 2)["pause_ms"])
            found["3 -> 2", name].append(run.resize(0, 1)["pause_ms"])
            found["2 -> 1", name].append(run.resize(0)["pause_ms"])
            run.join(1, 0, 1)
            run.join(2, 0, 1, 2)
            found["kill 1 of 3", name].append(run.kill(2, 0, 1))
            run.resize(0)
        gang.stop()
        if not sizes[2]:
            found[TORCHRUN, name] = torchrun(folder, sizes[:2], rounds)
    return found


def torchrun(folder: Path, sizes: tuple[int, int], rounds: int) -> list[float]:
    """Milliseconds from a kill of one of three processes until torchrun's new ones have taken a step, each round.

    Infinite where they took none in RESTART_SECONDS, or ended. Empty where torchrun does not start here.
    """
    steps, script = folder / "steps", Path(__file__).with_name("torchrun.py")
    run = [str(pytorch_runtime.torch().python), "-m", "torch.distributed.run", "--standalone"]
    options = ["--nproc_per_node=3", "--max_restarts=1", "--monitor_interval=0.1"]
    command = [*run, *options, str(script), *map(str, sizes), str(steps)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    taken = []
    for _ in range(rounds):
        steps.write_text("")
        process = subprocess.Popen(command, env=own, stderr=subprocess.DEVNULL)
        try:
            first = _first_step(steps, process, but=[])
            if first is None:
                return []
            time.sleep(1.0)
            began = time.time()
            os.kill(int(first[1][1]), signal.SIGKILL)
            again = _first_step(steps, process, but=first[1])
            taken.append(math.inf if again is None else 1000 * (again[0] - began))
        finally:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            left = [process.pid, *map(int, children.read_text().split())] if children.exists() else []
            for pid in left:  # none where it has ended by itself, with its processes
                os.kill(pid, signal.SIGKILL)
            process.wait()
    return taken


def _first_step(file: Path, torchrun: subprocess.Popen[bytes], but: list[str]) -> tuple[float, list[str]] | None:
    """Time and processes of the first step that other processes than `but` took; None where there was none."""
    until = time.monotonic() + RESTART_SECONDS
    while time.monotonic() < until and torchrun.poll() is None:
        for line in file.read_text().splitlines(keepends=True):
            at, *pids = line.split()
            if line.endswith("\n") and not set(pids) & set(but):
                return float(at), pids
        time.sleep(0.05)
    return None


def page(found: dict[tuple[str, str], list[float]], rounds: int, load: tuple[float, float]) -> str:
    """The table."""
    lines = [
        "# PyTorch: what a change of the group costs",
        "",
        f"`python -m benchmarks.pytorch.changes {rounds}`: real functions on {os.cpu_count()} cores, load "
        f"{load[0]:.1f} before and {load[1]:.1f} after. Median (worst) of {rounds}, in milliseconds. A change: from "
        "the end of the last step in the old group until all workers of the new one have the state and train. A kill: "
        "from the signal until the survivors take the step up again; torchrun (`--monitor_interval 0.1`) starts all "
        "processes again, and a training would still have to go back to its last checkpoint. Failed: ended, or without "
        f"a step for {RESTART_SECONDS:.0f} s. With a server the others "
        "take up their next step while the newcomer gets the weights, and wait for it there.",
        "",
        "| change | " + " | ".join(MODELS) + " |",
        "| --- |" + " --- |" * len(MODELS),
    ]
    for case in (case for case in CASES if found[case, next(iter(MODELS))]):
        cells = [_cell(found[case, name]) or "-" for name in MODELS]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float]) -> str:
    ended = [value for value in values if math.isfinite(value)]
    hung = f"{len(values) - len(ended)} of {len(values)} failed" if len(ended) < len(values) else ""
    said = f"{statistics.median(ended):.0f} ({max(ended):.0f})" if ended else ""
    return "; ".join(filter(None, (said, hung)))


def main() -> None:
    """Measure and write the page."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    before = os.getloadavg()[0]
    framework = {"COACH_FRAMEWORK": "pytorch"}
    with tempfile.TemporaryDirectory() as folder:
        template = Template(Path(folder) / "t.sock", **framework)
        gang = Gang(3, 1, network=32, COACH_ZYGOTE_TEMPLATE=str(template.path), **framework)
        try:
            found = measure(gang, Path(folder), rounds)
        finally:
            gang.close()
            template.close()
    text = page(found, rounds, (before, os.getloadavg()[0]))
    written = Path(sys.argv[2]) if len(sys.argv) > 2 else WRITTEN
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

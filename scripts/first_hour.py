"""A stranger's first hour, typed into a shell that knows nothing of Coach: writes results/first-hour.md.

    python -m scripts.first_hour

A fresh clone in an empty folder, an environment and a home of its own; the commands of README, the first run and the
search, mistakes, a GPU that is not there, and a first job on a real Slurm of three nodes (`tests.slurm.cluster`, which
needs root). Each command has its seconds, its exit code and what it printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.docs.pages import ROOT, blocks
from tests.slurm.cluster import SlurmCluster

PLACE = ROOT / "results/first-hour.md"
#: Lines that are kept of the beginning and of the end of what a command prints.
FIRST, LAST = 12, 14
HEAD = """# A stranger's first hour

Typed by `python -m scripts.first_hour` on {day}, commit `{commit}`, {cores} cores, load {load:.0f} at the start: a
fresh clone, an empty home, no environment. Each command has its seconds and its exit code, where it is not 0.
Long outputs are cut in the middle. In sum {minutes:.0f} minutes of waiting.
"""


@dataclass(frozen=True)
class Step:
    """Something that a stranger wants, and what is typed for it; `code` is the exit code that is right."""

    wanted: str
    typed: str
    code: int = 0


TRAIN = "-- python train.py"
STEPS = (
    Step("Install it.", f"git clone -q {ROOT} coach"),
    Step("", "python3.11 -m venv .venv && . .venv/bin/activate && pip install -q ./coach"),
    Step("Is this machine good enough?", "coach doctor"),
    Step("A script of my own: does Coach find its metric?", f"cd first && coach try --target val_loss=0.08 {TRAIN}"),
    Step("Train to the target.", f"coach run --budget 0.05USD --target val_loss=0.08 {TRAIN}"),
    Step("Why, and what would more money buy?", "coach why train"),
    Step("", "coach plan train --budget 0.001,0.002,0.05"),
    Step("A metric that is not there.", f"coach try --target accuracy=0.9 {TRAIN}", 2),
    Step("Mistakes.", f"coach run --budget 5 --target val_loss=0.08 {TRAIN}", 2),
    Step("", f"coach run --budget 5USD --targt val_loss=0.08 {TRAIN}", 2),
    Step("", "coach why trian", 2),
    Step("Too little money.", f"coach run --budget 0.0003USD --target val_loss=0.01 --name poor {TRAIN}", 3),
    Step("It goes on with more.", "coach ps"),
    Step(
        "The best learning rate of six.",
        "cd ../search && coach search --set lr=0.001,0.003,0.01,0.03,0.1,0.3 --budget 1USD --objective val_loss "
        "--max-epochs 15 --resumes -- python train.py --lr {lr}",
    ),
    Step("", "coach search --show train"),
    Step(
        "A GPU, where there is none.",
        f"cd ../first && coach run --gpus 1 --budget 1USD --target val_loss=0.08 {TRAIN}",
        2,
    ),
    Step("", f"coach run --gpus 1 --budget 1gpuh --target val_loss=0.08 --name wide {TRAIN}", 1),
)
ON_SLURM = (
    Step("A cluster: is Slurm there?", "coach doctor --also slurm"),
    Step(
        "A first job on it.",
        f"coach run --platform slurm --budget 1coreh --target val_loss=0.08 --name on-slurm {TRAIN}",
    ),
    Step("", "squeue --me"),
)


class Shell:
    """A bash that keeps its folder and its environment from one line to the next."""

    def __init__(self, home: Path) -> None:
        self._own = {
            "HOME": str(home),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin",
            "COLUMNS": "100",
            "LANG": "C.UTF-8",
        }
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_", "HTTP_"))
        }
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=home, env=kept | self._own, text=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def type(self, line: str) -> tuple[int, float, list[str]]:
        """Exit code, seconds and printed lines of one command line."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        said: list[str] = []
        began = time.monotonic()
        self._bash.stdin.write(f"{line} < /dev/null\nprintf '\\n=end= %s\\n' $?\n")
        self._bash.stdin.flush()
        for printed in self._bash.stdout:
            if ended := re.fullmatch(r"=end= (\d+)\n", printed):
                return int(ended[1]), time.monotonic() - began, said[:-1] if said and not said[-1] else said
            said.append(printed.rstrip())
            if not said[0]:
                said.clear()
        raise ChildProcessError(f"the shell ended in: {line}")

    def close(self) -> None:
        """End it."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait()


@contextlib.contextmanager
def slurm() -> Iterator[Mapping[str, str]]:
    """The environment of a shell on the login node of a Slurm."""
    with SlurmCluster() as cluster:
        yield cluster.env


def written(steps: tuple[Step, ...], shell: Shell, folder: Path, wrong: list[str]) -> Iterator[str]:
    """The page's lines for `steps`, typed one by one; those that end otherwise than is right go into `wrong`."""
    for step in steps:
        code, seconds, said = shell.type(step.typed)
        if code != step.code:
            wrong.append(f"{step.typed}: exit code {code}, not {step.code}")
        if step.wanted:
            yield f"\n## {step.wanted}\n"
        cut = [*said[:FIRST], "...", *said[-LAST:]] if len(said) > FIRST + LAST + 1 else said
        ended = f", exit code {code}" if code else ""
        typed = step.typed.replace(str(ROOT), "REPOSITORY")
        text = "\n".join(["```text", f"$ {typed}", *cut, "```", "", f"{seconds:.1f} s{ended}", ""])
        yield text.replace(str(folder), "~")


def main() -> int:
    """Write the page; 1 where a command ended otherwise than is right."""
    wrong: list[str] = []
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for room, page in (("first", "docs/start/first-run.md"), ("search", "docs/guides/search.md")):
            (folder / room).mkdir()
            script = next(one for one in blocks(ROOT / page) if one.words == "file=train.py")
            (folder / room / "train.py").write_text(script.text, encoding="utf-8")
        shell = Shell(folder)
        lines = list(written(STEPS, shell, folder, wrong))
        with slurm() as environment:
            shell.type(f"export SLURM_CONF={environment['SLURM_CONF']}")
            lines += written(ON_SLURM, shell, folder, wrong)
        shell.close()
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], text=True).strip()
    head = HEAD.format(
        day=f"{datetime.now(UTC):%Y-%m-%d}", commit=commit, cores=os.cpu_count(), load=load,
        minutes=(time.monotonic() - began) / 60,
    )  # fmt: skip
    PLACE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(wrong) or f"wrote {PLACE.relative_to(ROOT)}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

"""Twenty-seven public programs under `coach run`, each with a budget and a target.

    python -m benchmarks.programs.public                                 # those that PyTorch alone runs
    python -m benchmarks.programs.public --python PATH [NAME ...]        # and those of other libraries

The programs in `benchmarks/programs/public_programs` are loops of our own on data that they make themselves. They print
and write what their originals do, so that what Coach has to read is the same. A line that the original would need and
does not have ends with `# changed`, and is counted. The rows of programs that are not run stay as they were.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, read_csv, write_csv, write_table
from coach.core.jobs.job import Job
from coach.core.money import to_amount
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.local import pytorch_runtime

RESULT = RESULTS / "programs"
SCRIPTS = Path(__file__).with_name("public_programs")
COMMAND = "python -m benchmarks.programs.public --python PATH"
#: Seconds that a run may take.
PATIENCE = 1800
#: Where a program is to keep its checkpoints, in its arguments.
FOLDER = "$COACH_CHECKPOINTS"
#: What a run gives.
RESULTS_OF = (*("came out", "message", "value", "reports", "epochs", "workers", "spent", "budget", "seconds"),)


@dataclass(frozen=True, slots=True)
class Program:
    """A program and how it is run. `needs` is the library that it imports; `what` it is under Coach."""

    name: str
    script: str
    target: str
    arguments: str = ""
    metric: str = ""
    workers: str = "1"
    resumes: bool = False
    batch: str = ""
    needs: str = "torch"
    budget: str = "0.02USD"

    @property
    def function(self) -> str:
        """Its function in its script."""
        return self.name.rpartition(" ")[2].lower().replace("-", "_")

    @property
    def path(self) -> Path:
        """Its script."""
        return SCRIPTS / self.script

    def lines_changed(self) -> int:
        """The lines of it that end with `# changed`."""
        text = self.path.read_text(encoding="utf-8")
        body = next(
            one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == self.function
        )
        return sum(line.endswith("# changed") for line in text.splitlines()[body.lineno - 1 : body.end_lineno])

    def words(self, python: str) -> list[str]:
        """What `coach run` gets."""
        words = [
            "--budget",
            self.budget,
            "--workers",
            self.workers,
            "--cpu",
            "1",
            "--name",
            "own",
            "--no-live",
        ]
        words += ["--target", self.target] if self.target else []
        words += ["--metric", self.metric] if self.metric else []
        words += ["--resumes"] if self.resumes else []
        words += ["--set", f"program.batch={self.batch}"] if self.batch else []
        command = [python, str(self.path), self.function, *shlex.split(self.arguments)]
        if FOLDER in self.arguments:  # a shell knows the folder
            quoted = " ".join(word if FOLDER in word else shlex.quote(word) for word in command)
            command = ["sh", "-c", f"exec {quoted}"]
        return [*words, "--", *command]


IMAGES, NUMBERS, TEXT, LIBRARIES = "images.py", "numbers_.py", "text.py", "libraries.py"
PERCENT = r"Accuracy: \d+/\d+ \((\d+)%\)"
CHANGES: dict[str, Any] = {"workers": "1-2", "resumes": True, "budget": "0.1USD"}
PROGRAMS = (
    Program("pytorch/examples mnist", IMAGES, "loss=0.3"),
    Program(
        *("pytorch/examples imagenet", IMAGES, "top1>=60", f"--resume {FOLDER}/checkpoint.pth.tar"),
        *(r" \* +Acc@1 ([0-9.]+)", "2", True),
    ),
    Program("pytorch/examples word_language_model", TEXT, "valid_ppl<=9"),
    Program("pytorch/examples vae", IMAGES, "loss=544", metric="Test set loss: ([0-9.]+)"),
    Program("pytorch/examples dcgan", IMAGES, "", "--niter 1000", budget="0.004USD"),
    Program("pytorch/examples siamese_network", IMAGES, "percent>=85", metric=PERCENT),
    Program("pytorch/examples super_resolution", IMAGES, "PSNR>=18"),
    Program("pytorch/examples regression", NUMBERS, "Loss<=0.01"),
    Program("pytorch/examples reinforce", NUMBERS, "reward>=100", metric=r"Average reward: ([0-9.]+)"),
    Program("pytorch/examples gat", NUMBERS, "acc_val>=0.85"),
    Program("pytorch/examples time_sequence_prediction", NUMBERS, "test_loss=0.001"),
    Program("pytorch/examples multigpu_torchrun", TEXT, "loss=0.4", **CHANGES),
    # Alone, without Coach, 25 epochs: the least is 2.731 in epoch 10, then it over-fits.
    Program(
        *("pytorch/examples minGPT-ddp", TEXT, "eval_loss=2.75", f"--snapshot_path {FOLDER}/snapshot.pt"),
        **{"metric": "Eval Loss ([0-9.]+)", **CHANGES},
    ),
    # Its loss rests at 2, and falls on to 0.54 in epoch 34. Two processes alone have the same 2.045 in epoch 12.
    Program(
        *("pytorch/examples fsdp_t5", LIBRARIES, "loss=1.5"),
        **{"metric": "Validation Loss: ([0-9.]+)", "workers": "2", "needs": "transformers", "budget": "0.1USD"},
    ),
    # Alone, without Coach: 2.392 after 600 steps.
    Program(*("nanogpt", TEXT, "val_loss=2.4", f"--out_dir={FOLDER}"), **{**CHANGES, "batch": "per-job"}),
    Program(
        *("mingpt adder", TEXT, "score>=20"),
        **{"metric": r"test final score: \d+/\d+ = ([0-9.]+)% correct", "budget": "0.1USD"},
    ),
    Program("transformers run_glue_no_trainer", LIBRARIES, "f1=0.95", needs="transformers"),
    # Alone, without Coach: 2.187 after 20 epochs.
    Program(
        *("transformers run_clm", LIBRARIES, "eval_loss=2.2", f"--output_dir {FOLDER}/out"),
        **{**CHANGES, "needs": "transformers"},
    ),
    Program("accelerate nlp_example", LIBRARIES, "f1=0.95", workers="2", needs="accelerate"),
    Program("accelerate cv_example", LIBRARIES, "percent>=80", metric=r"epoch \d+: ([0-9.]+)", needs="accelerate"),
    Program(
        *("Lightning autoencoder", LIBRARIES, "val_loss=0.65"),
        **{"metric": "tensorboard:lightning_logs", "needs": "lightning", **CHANGES},
    ),
    Program(
        *("timm", IMAGES, "eval_top1>=75", f"--lr 0.0001 --epochs 200 --output {FOLDER}"),
        **{"metric": "csv:CHECKPOINTS/**/summary.csv", **CHANGES},
    ),
    Program("ultralytics", IMAGES, "map50>=0.8", metric="csv:runs/**/results.csv#metrics/mAP50(B)"),
    Program("kubeflow_mnist", LIBRARIES, "Loss<=0.5", workers="2"),
    Program("Ray fashion_mnist", LIBRARIES, "accuracy=0.8", needs="ray", budget="0.1USD"),
    Program("flax_mnist", LIBRARIES, "percent>=80", metric="test_accuracy: ([0-9.]+)", needs="flax"),
    Program("Keras mnist_convnet", LIBRARIES, "val_accuracy=0.8", needs="keras"),
)


def main() -> None:
    """Run them, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs by the last word of their names")
    parser.add_argument("--python", help="with the other libraries; those that it lacks are said to be missing")
    options = parser.parse_args()
    out = RESULT / "public.csv"
    rows = {row["program"]: row for row in read_csv(out)}
    for program in PROGRAMS:
        if not options.names or program.function in options.names:
            row = run(program, options.python)
            print(row, file=sys.stderr, flush=True)
            rows = {each["program"]: each for each in read_csv(out)} | {
                program.name: row
            }  # another run may have written
            write_csv(out, [rows[one.name] for one in PROGRAMS if one.name in rows])
    write([rows[one.name] for one in PROGRAMS if one.name in rows])


def run(program: Program, python: str | None = None) -> dict[str, Any]:
    """A program under Coach in a folder of its own: what came out."""
    found = str(pytorch_runtime.torch().python) if program.needs == "torch" else python
    row: dict[str, Any] = {
        "program": program.name,
        "lines": program.lines_changed(),
        "depth": "resumes" if program.resumes else "nothing changed",
        "option": program.metric,
        "target": program.target,
        **dict.fromkeys(RESULTS_OF, ""),
    }
    if found is None or not _has(found, program.needs):
        why = "no --python" if found is None else f"no {program.needs} in it"
        return row | {"came out": f"not run: {why}"}
    job, seconds = trained(program, found)
    budget = job.money.ledger.budget
    workers = [epoch.allocation.workers for epoch in job.epochs]
    chosen = [str(one) for at, one in enumerate(workers) if not at or workers[at - 1] != one]
    last = job.full_epochs[-1] if job.full_epochs else None
    return row | {
        "came out": job.reason.value if job.reason else "",
        "message": job.message,
        "value": "" if last is None else f"{job.value(last):.4g}",
        "reports": len(job.epochs),
        "epochs": f"{job.epochs_trained:.1f}",
        "workers": " -> ".join(chosen),
        "spent": f"{to_amount(job.money.ledger.spent):.6f}",
        "budget": f"{to_amount(budget):.6f}" if budget is not None else "",
        "seconds": f"{seconds:.1f}",
    }


def _has(python: str, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def trained(program: Program, python: str) -> tuple[Job, float]:
    """The job of a program that was run in a folder of its own, and the seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        words = [word.replace("CHECKPOINTS/", f"{folder}/jobs/own/") for word in program.words(python)]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "coach.cli.main", "run", *words],
            cwd=folder,
            env={**os.environ, "COACH_HOME": folder, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        seconds = time.monotonic() - began
        journal = StateDirectory(Path(folder)).journal(1)
        assert journal.exists(), done.stdout
        job = job_of(StateDirectory(Path(folder)))
    assert job is not None, done.stdout
    return job, seconds


def job_of(home: StateDirectory) -> Job | None:
    """The job of a run that is over."""
    journal = Journal.read(home.journal(1))
    try:
        return journal.jobs().get("own")
    finally:
        journal.close()


def write(rows: list[dict[str, Any]]) -> None:
    """The table."""
    shown = [
        {
            "program": row["program"],
            "depth": row["depth"],
            "lines changed": row["lines"],
            "`--target`": f"`{row['target']}`" if row["target"] else "",
            "`--metric`": f"`{row['option']}`".replace("|", "\\|") if row["option"] else "",
            "came out": row["came out"],
            "reports": row.get("reports") or "",
            "workers": row.get("workers") or "",
            "spent of the budget": f"{float(row['spent']) / float(row['budget']):.0%}" if row.get("spent") else "",
            "s": row.get("seconds") or "",
        }
        for row in rows
    ]
    good = sum(row["came out"] == "TargetReached" for row in rows)
    changing = sum("->" in (row.get("workers") or "") for row in rows)
    there = {row["program"] for row in rows}
    missing = [one.name for one in PROGRAMS if one.name not in there]
    note = (
        f"{good} of {len(rows)} were stopped at their targets; {changing} had their workers changed as they trained.\n"
        "Own loops on made data, which print and write what their originals do. Lines changed: those that the\n"
        "original needs and does not have, marked in `benchmarks/programs/public_programs`.\n"
        + (f"Not run yet: {', '.join(missing)}.\n" if missing else "")
        + f"Load average at the end: {os.getloadavg()[1]:.1f}."
    )
    write_table(RESULT / "public.md", "Public programs under a budget", COMMAND, shown, note)


if __name__ == "__main__":
    main()

"""The part of a job file on Slurm: what its user gives to `sbatch`, and what of that Coach decides itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

from coach.core.spec.types import SpecModel, Text, form, mistake

#: Options of sbatch that Coach gives itself, and the field of a job file that means each.
DECIDED = {
    "nodes": "workers", "ntasks": "workers", "ntasks-per-node": "workers", "ntasks-per-core": "workers",
    "ntasks-per-socket": "workers", "ntasks-per-gpu": "workers", "overcommit": "workers",
    "cpus-per-task": "resources.worker.cpu", "cpus-per-gpu": "resources.worker.cpu", "cores-per-socket": "workers",
    "mem": "resources.worker.memory", "mem-per-cpu": "resources.worker.memory",
    "mem-per-gpu": "resources.worker.memory",
    "gpus": "resources.worker.gpu", "gpus-per-task": "resources.worker.gpu", "gpus-per-node": "resources.worker.gpu",
    "gpus-per-socket": "resources.worker.gpu",
    "time": "timeLimit, and what the budget pays", "time-min": "timeLimit",
    "output": "nothing: coach logs JOB", "error": "nothing: coach logs JOB", "open-mode": "nothing: coach logs JOB",
    "input": "program.command", "wrap": "program.command", "chdir": "program.directory",
    "job-name": "metadata.name", "comment": "nothing: Coach's own mark is there",
    "array": "coach search, or a job each", "requeue": "program.resumes", "no-requeue": "program.resumes",
    "signal": "gracePeriod", "wait": "nothing: coach run waits", "test-only": "coach try", "parsable": "nothing",
    "quiet": "nothing", "help": "nothing", "usage": "nothing", "version": "nothing",
}  # fmt: skip
_SHORT = {
    "N": "nodes", "n": "ntasks", "O": "overcommit", "c": "cpus-per-task", "G": "gpus", "t": "time", "o": "output",
    "e": "error", "i": "input", "D": "chdir", "J": "job-name", "a": "array", "W": "wait", "Q": "quiet", "h": "help",
    "V": "version",
}  # fmt: skip


def refusal(options: Sequence[str]) -> tuple[str, str] | None:
    """The first word that is not for the user to say, and what is right instead; None where all are.

    sbatch takes the beginning of an option's name for it where that is clear.
    """
    may_be_value = False
    for word in options:
        name = word.partition("=")[0]
        if word == ":":
            return word, "workers: one job, whose tasks are all alike; heterogeneous jobs are not there"
        if not word.startswith("-") or word in ("-", "--"):
            if not may_be_value:
                return word, "options of sbatch alone, such as --partition=gpu; what is no option is a script to it"
            may_be_value = False
            continue
        long = name.removeprefix("--") if name.startswith("--") else _SHORT.get(word[1], "")
        for decided, field in DECIDED.items():
            if long and decided.startswith(long):
                return word, f"{field}: Coach gives --{decided} itself"
        if re.match(r"--gres?=(.*,)?gpu", word):
            return word, "resources.worker.gpu: Coach gives --gpus-per-task itself"
        may_be_value = "=" not in word and (name.startswith("--") or len(word) == 2)
    return None


def _options(words: tuple[str, ...]) -> tuple[str, ...]:
    if found := refusal(words):
        raise mistake(f"{found[0]} is not for sbatch", found[1])
    return words


Name = Annotated[Text, form(r"^[^\s\x00-\x1f=-][^\s\x00-\x1f]{0,254}$", "one word, at most 255 characters")]
Option = Annotated[
    Text,
    form(r"^[^\x00-\x1f]{1,1000}$", "one word of a command line, at most 1,000 characters"),
    Field(description="An option, or its value, as `sbatch` gets it."),
]


class Slurm(SpecModel):
    """Where and how a program's job is queued; elsewhere than on Slurm it has no meaning."""

    partition: Name | None = Field(default=None, examples=["gpu"])
    """Partition, or several with commas: `sbatch --partition`."""
    account: Name | None = Field(default=None, examples=["lab"])
    """Account that is charged: `sbatch --account`."""
    qos: Name | None = Field(default=None, examples=["short"])
    """Quality of service: `sbatch --qos`."""
    constraint: Name | None = Field(default=None, examples=["a100|h100"])
    """Features that the nodes have: `sbatch --constraint`."""
    queue_ahead: bool = False
    """Whether a larger job is queued while the smaller one runs, which ends when the larger one has its nodes. From
    then until it has ended both cost.
    """
    options: Annotated[tuple[Option, ...], Field(max_length=100), AfterValidator(_options)] = Field(
        default=(), examples=[["--reservation=course", "--exclusive"]]
    )
    """Other options for `sbatch`, as they are, a word each. Those that Coach gives itself are refused: nodes, tasks,
    cores, memory, GPUs, time, output.
    """

    @property
    def words(self) -> tuple[str, ...]:
        """All of them, as `sbatch` reads them."""
        named = {key: getattr(self, key) for key in ("partition", "account", "qos", "constraint")}
        return (*(f"--{key}={value}" for key, value in named.items() if value is not None), *self.options)

    @property
    def chosen_partition(self) -> str | None:
        """The partitions that it names, wherever it does; None: the default one."""
        found = None
        for word, following in pairwise((*self.words, "")):
            if (said := re.fullmatch(r"(?:--part[a-z]*|-p)(=?)(.*)", word)) is not None:
                found = said[2] or following
        return found

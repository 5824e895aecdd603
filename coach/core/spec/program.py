"""The part of a job file on a program: any command, in place of a model file, and the metrics that it reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from coach.core.spec.metric_source import WRITTEN, MetricSource
from coach.core.spec.types import (
    CrossFieldError,
    Duration,
    MetricName,
    MountPath,
    ObjectName,
    SecretKeyName,
    Sha256,
    SpecModel,
    StrictBool,
    StrictInt,
    Text,
    Uri,
    VariableName,
    conflict,
    form,
    mistake,
)

#: Characters of a word of a command, and of the value of an environment variable.
LONGEST_WORD = 32_768
#: Characters of a regular expression.
LONGEST_PATTERN = 500

#: Words of a metric's name by which it is known that less is better ...
_LESS = {"loss", "error", "err", "perplexity", "ppl", "mse", "mae", "rmse", "nll", "bpb", "bpc", "wer", "cer", "fid"}
_LESS |= {"rmsle", "mape", "smape", "mase", "deviance", "crossentropy", "brier"}
#: ... also where they end another word: `logloss`, `merror`.
_ENDINGS = ("loss", "error")
#: ... or that more is better: of those that are never above 1, and of all.
_AT_MOST_ONE = {"accuracy", "acc", "f1", "precision", "recall", "auc", "auroc", "map", "iou", "miou", "dice", "em"}
_AT_MOST_ONE |= {"matthews", "correlation", "r2", "top1", "top5", "ssim"}
_MORE = _AT_MOST_ONE | {"bleu", "rouge", "psnr", "reward", "rew", "return", "score"}
#: All words of a metric's name that show its goal.
GOAL_WORDS = _LESS | _MORE


#: How a metric's learning curve runs: it falls like a loss, rises to a best value that is known like an accuracy, or
#: rises to one that is not known, like a reward.
Curve = Literal["loss", "accuracy", "score"]
#: Whether each worker of a program takes a batch of its own, or all divide one.
Batch = Literal["per-worker", "per-job"]


class Goal(StrEnum):
    """Whether a smaller or a larger value of a metric is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


def usual_goal(metric: str) -> Goal | None:
    """The goal that a metric's name shows: `eval_loss`, `val/F1`; None for a name that shows none."""
    words = _words(metric)
    if words & _LESS or any(word.endswith(_ENDINGS) for word in words) or {"cross", "entropy"} <= words:
        return Goal.MINIMIZE
    return Goal.MAXIMIZE if words & _MORE else None


def at_most_one(metric: str) -> bool:
    """Whether a metric of this name has 1 as its best value: an accuracy has, a reward has not."""
    return bool(_words(metric) & _AT_MOST_ONE)


def _words(metric: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", metric.lower()))


def _source(text: str) -> str:
    if MetricSource.read("", text).kind != "pattern":
        return text
    right = rf"such as 'val loss: ([0-9.]+)', or {WRITTEN}, lines or status"
    try:
        found = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise mistake(f"not a regular expression: {error}", right) from None
    if found.groups != 1:
        raise mistake(f"a pattern with {found.groups} groups", f"one group, around the number, {right}")
    return text


Metric = Annotated[Text, StringConstraints(min_length=1, max_length=LONGEST_PATTERN), AfterValidator(_source)]
Word = Annotated[
    Text,
    form(r"^[^\x00]*$", "text", max_length=LONGEST_WORD),
    Field(description="One word, as the program gets it."),
]


class SecretKey(SpecModel):
    """A value that a cluster keeps: one key of a Secret."""

    secret: ObjectName = Field(examples=["hub"])
    """Name of the Secret, in the job's namespace."""
    key: SecretKeyName = Field(examples=["token"])
    """Its key."""


class Program(SpecModel):
    """A command that trains: a script in any language, with a loop of its own."""

    command: Annotated[tuple[Word, ...], Field(min_length=1, max_length=1000)] = Field(
        examples=[["python", "train.py", "--lr", "0.1"]]
    )
    """The command and its arguments, one word each; no shell reads them."""
    directory: Uri | None = Field(default=None, examples=["../programs/mnist"])
    """Folder that the command runs in, relative to the job file; without it, the job file's own. Of a job with an
    `image`, a folder of the image; without it, the image's own.
    """
    code: ObjectName | None = Field(default=None, examples=["train-code"])
    """Only on a cluster: a ConfigMap with files that the command finds in the folder it runs in; `-.-` in a key is a
    slash. `coach --context NAME run` and `submit` make it of the program's own folder.
    """
    env: dict[VariableName, Word] = Field(default={}, max_length=200, examples=[{"OMP_NUM_THREADS": "1"}])
    """Environment variables that the command gets in addition to those that Coach itself has, or, of a job with an
    `image`, the image has.
    """
    secrets: dict[VariableName, SecretKey] = Field(
        default={}, max_length=100, examples=[{"HF_TOKEN": {"secret": "hub", "key": "token"}}]
    )
    """Only on a cluster: environment variables whose values are in Secrets. Coach never reads them."""
    volumes: dict[MountPath, ObjectName] = Field(default={}, max_length=20, examples=[{"/data": "imagenet"}])
    """Only on a cluster: PersistentVolumeClaims by the folders at which the command sees them."""
    metrics: dict[MetricName, Metric] = Field(
        default={}, max_length=32, examples=[{"eval_loss": "val loss: ([0-9.]+)", "f1": "csv:logs/metrics.csv#val/f1"}]
    )
    """Where each metric comes from: a regular expression for the lines that the command prints, with one group, around
    the number; or csv:FILE, jsonl:FILE, trainer-state:FILE, tensorboard:FOLDER, lines (JSON) or status, each with
    `#NAME` where the metric has another name there. One that is not here is found in lines and status; in lines also as
    `name: 0.31`, `name=0.31` or `name 0.31`. `epoch` is the learning curve's axis.
    """
    samples_per_epoch: StrictInt | None = Field(default=None, ge=1, le=10**15, examples=[60000])
    """Samples in one pass over the data, where the program reports `samples` in place of an epoch."""
    resumes: StrictBool = False
    """Whether the program, started again, goes on from its own newest checkpoint. Then a failure or a stop costs no
    more than the time since that checkpoint; else the program starts from its beginning, and after a failure not at
    all. Only then its number of workers may change. The variable COACH_CHECKPOINTS names a folder that is the job's
    own.
    """
    batch: Batch = "per-worker"
    """What the program's batch size is about, where its number of workers changes: with `per-worker` each worker takes
    a batch of its own, so twice as many workers take twice as many samples a step; with `per-job` the program divides
    one batch among its workers, and nothing changes.
    """
    stall_timeout: Annotated[Duration, Field(gt=0)] | None = Field(default=None, examples=["20m"])
    """Longest time between two reports; a program that reports nothing for longer is ended, as one that hangs. Without
    it a program hangs when none of its processes has computed, read or written for a long time: a minute and twice its
    longest interval so far, before its first report five minutes. A duration, or seconds.
    """
    sha256: Sha256 | None = None
    """SHA-256 of the files that the command names, such as `train.py`; filled in where they are on this machine, so
    that a run records its program.
    """

    def _conflicts(self) -> Iterator[CrossFieldError]:
        for name in sorted(self.env.keys() & self.secrets.keys())[:1]:
            yield conflict(f"secrets.{name}", "said twice", "in env or in secrets", f"env.{name}")

    @property
    def folder(self) -> str:
        """The folder that the command runs in, on a machine whose files Coach sees."""
        return (self.directory or ".").removeprefix("file://")

    def sources(self) -> tuple[MetricSource, ...]:
        """Where its metrics come from, as far as the job file says it."""
        return tuple(MetricSource.read(metric, text) for metric, text in self.metrics.items())

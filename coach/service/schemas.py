"""The bodies of the API's requests, with their bounds, and of its answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from coach.report.accounting import LedgerRow
from coach.report.status import EpochRow, JobRow

#: Maximum bytes of a request's body: a job file of the largest size, as JSON.
MAX_BODY = 2 << 20
MAX_FILES = 100
#: Seconds that a request may wait for a new record.
LONGEST_WAIT = 60.0

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
#: The path of a job file: absolute, without control characters.
_PATH = r"^/[^\x00-\x1f\x7f-\x9f]*$"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JobFile(_Body):
    """A job file. Relative paths in it are relative to the folder of `path`, which the answer's messages name too."""

    path: Annotated[str, Field(pattern=_PATH, max_length=2048, examples=["/home/me/jobs/lenet.yaml"])]
    text: Annotated[str, Field(max_length=1 << 20, description="Its content: YAML, one or more jobs.")]


class Submission(_Body):
    """Job files to submit, all or none."""

    files: Annotated[list[JobFile], Field(min_length=1, max_length=MAX_FILES)]
    policy: Annotated[
        str, Field(max_length=40, description="Instead of the jobs' own, such as static:2x1.")
    ] = ""


class Resumption(_Body):
    """How to resume."""

    add_budget: Annotated[
        float, Field(ge=0, le=1e6, allow_inf_nan=False, description="More money, in the job's currency.")
    ] = 0.0


class Suspension(_Body):
    """How to stop."""

    now: Annotated[bool, Field(description="At once, instead of at the checkpoint of the running epoch.")] = (
        False
    )


class Problem(BaseModel):
    """One mistake: `text` is the whole message; the other fields are its parts, for a job file's mistakes."""

    text: str
    path: str = ""
    line: int = 0
    column: int = 0
    field: str = ""
    problem: str = ""
    seen: str = ""
    right: str = ""


class Error(BaseModel):
    """Why something was not done."""

    error: str
    problems: list[Problem] = []


class Health(BaseModel):
    """The service runs."""

    status: str
    version: str


class Cluster(BaseModel):
    """The service's nodes, policy and placement."""

    version: str
    policy: str
    nodes: list[NodeRow]
    folders: list[str]
    home: str
    stopping: bool


class NodeRow(BaseModel):
    """A node; memory in GiB."""

    name: str
    cpu: float
    memory: float


class JobList(BaseModel):
    """All jobs. `seq` is the number of the last record of any."""

    seq: int
    jobs: list[JobRow]


class TakenJob(BaseModel):
    """A job of a submission: a new one (`note`: why under another name), or a suspended one that is resumed.

    `warnings`: what its file says that is read, but should be written otherwise.
    """

    job: JobRow
    went_on: bool
    note: str
    warnings: list[str]


class Submitted(BaseModel):
    """The jobs of a submission. `seq` is the number of the last record before it."""

    seq: int
    jobs: list[TakenJob]


class JobDetail(BaseModel):
    """One job with its epochs, its ledger, the steps that led to its allocation, and its file."""

    seq: int
    job: JobRow
    why: list[str]
    epochs: list[EpochRow]
    ledger: list[LedgerRow]
    spec: dict[str, Any]


class EventLine(BaseModel):
    """An event as a line of text; `at` is an ISO 8601 time."""

    seq: int
    at: str | None
    text: str
    important: bool


class Events(BaseModel):
    """The events of a job. Continue with `after` = `seq`."""

    seq: int
    ended: bool
    events: list[EventLine]


class Why(BaseModel):
    """The reasons for a job's state and allocation, line by line."""

    lines: list[str]


class LogFile(BaseModel):
    """The log of one function; the oldest part of a long one is dropped."""

    function: str
    bytes: int


class LogFiles(BaseModel):
    """The logs of a job's functions."""

    functions: list[LogFile]


class LogText(BaseModel):
    """Whole lines of a function's log (JSON each). Continue with `after` = `next`."""

    text: str
    next: int


class RecordRow(BaseModel):
    """An event or action as the journal keeps it."""

    seq: int
    type: str
    body: dict[str, Any]


class ProgressRow(BaseModel):
    """The progress of a running epoch: samples trained, of how many."""

    token: str
    state: str
    samples: int
    total: int


class Records(BaseModel):
    """Records of some jobs and of their handler, from which their state follows. Continue with `after` = `seq`."""

    seq: int
    now: float
    records: list[RecordRow]
    progress: dict[str, ProgressRow]


Cluster.model_rebuild()

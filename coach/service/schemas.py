"""The bodies of the API's requests, with their bounds, and of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from coach.core.cluster import Instance
from coach.core.estimation.interval import Interval
from coach.handler.search.standing import SearchRow, TrialRow
from coach.report.accounting import Balance
from coach.report.row_types import (
    AccountRow,
    JobRow,
    Plan,
    SpendingRow,
)
from coach.report.simulation.rows import SimulatedJobRow, SimulatedTimeRow

#: Maximum bytes of a request's body: a job file of the largest size, as JSON.
MAX_BODY = 2 << 20
MAX_FILES = 100
#: Jobs of one simulation.
MAX_SIMULATED = 20
#: Seconds that a request may wait for a new record.
LONGEST_WAIT = 60.0

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
#: The path of a job file: absolute, without control characters.
_PATH = r"^/[^\x00-\x1f\x7f-\x9f]*$"


_EXAMPLE: dict[str, Any] = {
    "files": [{"path": "/home/me/jobs/lenet.yaml", "text": "apiVersion: coach.dev/v1alpha1\n..."}]
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JobFile(_Body):
    """A job file. Relative paths in it are relative to the folder of `path`, which the answer's messages name too."""

    path: Annotated[str, Field(pattern=_PATH, max_length=2048, examples=["/home/me/jobs/lenet.yaml"])]
    text: Annotated[str, Field(max_length=1 << 20, description="Its content: YAML, one or more jobs.")]


class Submission(_Body):
    """Job files to submit, all or none."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    files: Annotated[list[JobFile], Field(min_length=1, max_length=MAX_FILES)]
    policy: Annotated[str, Field(max_length=40, description="Instead of the jobs' own, such as static:2x1.")] = ""


class SimulatedNodes(_Body):
    """Nodes that are all alike. `memory`: GiB."""

    count: Annotated[int, Field(ge=1, le=100)]
    cpu: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)]
    memory: Annotated[float, Field(gt=0, le=16384, allow_inf_nan=False)]
    gpu: Annotated[int, Field(ge=0, le=64)] = 0


class Simulation(_Body):
    """A what-if: the jobs of files and of the service, all begun together, once under each policy.

    `jobs`: names of jobs of the service, running, finished or waiting; their files are simulated from the beginning.
    `nodes` null: those of the service.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "jobs": ["lenet-digits"],
                    "policies": ["coach", "static:2x1"],
                    "nodes": {"count": 3, "cpu": 2, "memory": 8},
                }
            ]
        }
    )

    jobs: Annotated[list[Annotated[str, Field(pattern=NAME, max_length=40)]], Field(max_length=MAX_SIMULATED)] = []
    files: Annotated[list[JobFile], Field(max_length=MAX_SIMULATED)] = []
    policies: Annotated[
        list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9:=.,_-]*$", max_length=80)]],
        Field(min_length=1, max_length=5),
    ] = ["coach"]
    nodes: SimulatedNodes | None = None
    budget: Annotated[
        float | None,
        Field(gt=0, le=1e9, allow_inf_nan=False, description="Of each job, in its currency, instead of its own."),
    ] = None
    timeline: Annotated[bool, Field(description="Also what each run uses, is asked for and lets wait over time.")] = (
        False
    )


class Resumption(_Body):
    """How to resume."""

    accept_model: Annotated[
        bool,
        Field(description="Go on with the model file as it is now, where it was changed since; else that is refused."),
    ] = False
    add_budget: Annotated[
        float,
        Field(
            ge=0,
            le=1e6,
            allow_inf_nan=False,
            description="More money, in the job's currency. A request sent twice adds it twice: see `budget`.",
        ),
    ] = 0.0
    budget: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e9,
            allow_inf_nan=False,
            description="The whole budget from now on, instead of `add_budget`: sent twice, it changes nothing more.",
            examples=[0.05],
        ),
    ] = None


class Suspension(_Body):
    """How to stop."""

    now: Annotated[bool, Field(description="At once, instead of at the checkpoint of the running epoch.")] = False


class Pruning(_Body):
    """Which checkpoints of ended jobs go: of these jobs, or of all; all but the best and the last, or `everything`."""

    jobs: Annotated[list[Annotated[str, Field(pattern=NAME, max_length=40)]], Field(max_length=1000)] = []
    everything: bool = False
    dry_run: bool = False


class AccountTerms(_Body):
    """A budget over jobs: `amount` in each `period`: ever, month, week, or a rolling window such as 30d."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"amount": 50, "currency": "USD", "period": "month"}]})

    amount: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
    currency: Annotated[str, Field(pattern=r"^([A-Z]{3}|gpuh|coreh|h)$")]
    period: Annotated[str, Field(pattern=r"^[a-z0-9.]+$", max_length=20)] = "ever"
    timezone: Annotated[str, Field(max_length=64, description="Where months and weeks begin at midnight.")] = "UTC"
    parent: Annotated[str, Field(max_length=40, description="The account that it is in, which pays too.")] = ""
    labels: Annotated[
        dict[str, str],
        Field(
            max_length=8,
            description="Jobs that have all of these are paid by it, whether they name it or not.",
        ),
    ] = {}


class Accounts(BaseModel):
    """The budgets over jobs, each before those that are in it."""

    accounts: list[AccountRow]


class Spending(BaseModel):
    """What each job paid out of which account in which period."""

    rows: list[SpendingRow]


class SearchStart(_Body):
    """A search to begin: a file of kind TrainingSearch."""

    file: JobFile


class SearchResumption(_Body):
    """How to go on with a search. `budget`: its whole budget from now on; `deadline`: seconds from now."""

    budget: Annotated[float | None, Field(gt=0, le=1e9, allow_inf_nan=False)] = None
    deadline: Annotated[float | None, Field(gt=0, le=365 * 86400, allow_inf_nan=False)] = None


class SearchList(BaseModel):
    """All searches."""

    searches: list[SearchRow]


class SearchDetail(BaseModel):
    """A search and its trials, the best one first. `seq`: of the last record before.

    `next_gain`: by how much as much money again would probably improve its best value.
    """

    seq: int
    search: SearchRow
    trials: list[TrialRow]
    next_gain: float | None


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


class Status(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and the next step if there is a problem."""

    name: str
    status: Status
    found: str
    next_step: str = ""


class Cluster(BaseModel):
    """The service's nodes with what is used of them, its queue, its policy, and where its files are.

    `waiting`: the length of the queue. `next`: the `cursor` of its next rows, where `limit` left some out. `folders`:
    those in which job files may name paths. `read_only`: it only shows jobs that ran elsewhere.
    """

    version: str
    policy: str
    nodes: list[NodeRow]
    queue: list[QueueRow]
    waiting: int
    next: str | None
    folders: list[str]
    home: str
    stopping: bool
    read_only: bool


class NodeRow(BaseModel):
    """A node: its cores, memory (GiB) and GPUs, what jobs hold of them, and as what machine it is paid, if known."""

    name: str
    cpu: float
    memory: float
    gpu: float
    cpu_used: float
    memory_used: float
    gpu_used: float
    held_by: list[Holding]
    price: Instance | None = None


class Holding(BaseModel):
    """The functions of one job on one node."""

    job: str
    workers: int
    servers: int
    schedulers: int


class QueueRow(BaseModel):
    """A job that waits; the first in the queue has position 1.

    `workers`, `servers`, `cpu`, `memory`: of its smallest gang.
    """

    position: int
    job: str
    priority: int
    since: str | None
    workers: int
    servers: int
    cpu: float
    memory: float
    reason: str
    reason_text: str
    message: str


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


class Note(BaseModel):
    """What a user writes about a job."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=10_000)]


class EventLine(BaseModel):
    """An event as a line of text; `at` is an ISO 8601 time."""

    seq: int
    at: str | None
    text: str
    important: bool


class Events(BaseModel):
    """The events of a job. Continue with `after` = `seq`. `over`: it has ended, is suspended, or no handler has it."""

    seq: int
    ended: bool
    over: bool
    events: list[EventLine]


class Consequences(BaseModel):
    """What a request would do, before it is sent.

    `allowed` false: the request would be refused, `refusal` says why. `text`: all of it in words. Money in the job's
    currency: `lost` was spent on an epoch that would not count, `comes_back` is reserved and would be released,
    `stays_spent` is what is paid after it.
    """

    of: str
    allowed: bool
    refusal: str
    text: str
    epoch_lost: int | None
    checkpoint_epoch: int | None
    lost: float
    comes_back: float
    stays_spent: float
    currency: str


class FittedPoint(BaseModel):
    """The fitted learning curve at `x` passes over the data, with its 80 % interval."""

    x: float
    value: float | None
    low: float | None
    high: float | None


class Figures(BaseModel):
    """What a job's figures show that its rows have not.

    `fitted`: its learning curve. `end`: the pass after which the target is expected to have held long enough.
    `now`: the service's clock, in seconds since 1970; what runs is drawn up to then.
    """

    seq: int
    now: float
    fitted: list[FittedPoint]
    end: Interval | None
    money: list[Balance]


class Checked(BaseModel):
    """Whether job files could be submitted, with every mistake, and what should be written otherwise."""

    valid: bool
    jobs: list[str]
    problems: list[Problem]
    warnings: list[str]


class Plans(BaseModel):
    """The predicted time and cost of jobs that were not submitted."""

    plans: list[Plan]


class SimulatedRun(BaseModel):
    """All jobs under one policy; `seconds` until the last one ended. The rows are those of `coach simulate --jobs`.

    `timeline`: those of `--timeline`, where that was asked for.
    """

    policy: str
    seconds: float
    jobs: list[SimulatedJobRow]
    timeline: list[SimulatedTimeRow]


class Origin(BaseModel):
    """Where the speeds and learning curves of jobs are from: measured in their runs, or assumed."""

    origin: str
    jobs: list[str]


class Simulated(BaseModel):
    """A run for each policy. All numbers are simulated; `origins` says from what."""

    runs: list[SimulatedRun]
    origins: list[Origin]
    nodes: int


class LoginCode(BaseModel):
    """A code for one login of a browser at `/ui/#login=CODE`, within `seconds`."""

    code: str
    seconds: int


class Login(_Body):
    """A code of `POST /login-codes`."""

    code: Annotated[str, Field(min_length=1, max_length=100)]


class LoggedIn(BaseModel):
    """The browser is logged in: the answer sets its cookie."""

    ok: bool


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

    model_config = ConfigDict(from_attributes=True)

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


for _model in (Cluster, NodeRow):
    _model.model_rebuild()

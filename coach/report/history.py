"""The events of jobs as text: one line for each record of interest to people, the same live and from the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coach.core.cluster import Allocation, CapacityType
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.accounts import NOTICES
from coach.core.jobs.decision import DecisionStep, StepKind
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import RESUMABLE, Reason, State, doubt
from coach.core.lifecycle import forecast, program_changes
from coach.core.money import Charge, to_amount
from coach.report import formatting
from coach.report.accounting import replay
from coach.report.prediction_changes import Predictions

#: Reasons without a line of their own: another line says more.
_SAID_ELSEWHERE = frozenset({Reason.SUBMITTED, Reason.PROBING_SPEED, Reason.TRAINING_EPOCH})


@dataclass(frozen=True, slots=True)
class Line:
    """An event of `job` at `at` (seconds since 1970). `important` lines are also in a short log."""

    at: float
    job: str
    text: str
    important: bool = True


def notice(record: act.NoticeAccount) -> str:
    """`account team-a: 80 %, 40.10 of 50.00 spent`."""
    spent, amount = (formatting.amount(to_amount(money)) for money in (record.spent, record.amount))
    what = f"{record.percent} %" if record.percent < NOTICES[-1] else "what it has left is too little"
    return f"account {record.account}: {what}, {spent} of {amount} spent"


class EventFormatter:
    """Formats records as text. `jobs()` gives the jobs after the record (live: after its whole event)."""

    def __init__(self, jobs: Callable[[], Mapping[str, Job]]) -> None:
        self._jobs = jobs
        self._last: dict[str, tuple[EpochKind, Allocation]] = {}
        self._stopped: set[str] = set()
        self._predictions = Predictions()

    def happened(self, event: Any, actions: Iterable[Any]) -> list[Line]:
        """The lines of an event and of its actions."""
        if isinstance(event, ev.HandlerStarted):
            # Jobs stay interrupted that were; those that go on say so next.
            self._stopped.update(self._jobs().keys() - {pod.job for pod in event.kept})
        return [line for record in (event, *actions) for line in self.lines(record)]

    def lines(self, record: Any) -> Iterator[Line]:
        """The lines for one record; none where there is nothing to report."""
        job = self._jobs().get(record.job)
        formatter = _FORMATTERS.get(type(record))
        if job is None or formatter is None:
            return
        said = formatter(self, job, record)
        if said is not None:
            text, important = said if isinstance(said, tuple) else (said, True)
            yield Line(record.at, record.job, text, important)
        if isinstance(record, act.RunEpoch) and (text := self._predictions.changed(job, record)):
            yield Line(record.at, record.job, text)

    # -- one method a type of record ----------------------------------------------------------------------

    def _submitted(self, job: Job, record: ev.JobSubmitted) -> str:
        text = "submitted"
        if record.known_points:
            many = formatting.count(len(record.known_points), "allocation")
            text += f"; earlier jobs like it measured the speed of {many}"
        if record.known_curves:
            runs = formatting.count(len(record.known_curves), "earlier run")
            text += f"; its learning curve is predicted with {runs} of the same program"
        return text

    def _resumed(self, job: Job, record: ev.ResumeRequested) -> str:
        self._stopped.discard(job.name)
        more = ""
        if record.added_budget:
            more = f", with {formatting.money(record.added_budget, _currency(job))} more"
        elif record.budget:
            more = f", with a budget of {formatting.money(record.budget, _currency(job))}"
        if job.spec.program is not None and job.reason is not Reason.SUBMITTED:  # it was not suspended: it runs still
            return f"goes on{more}"
        return f"resumed from {formatting.resumes_from(job)}{more}"

    def _stopping(self, job: Job, record: ev.SuspendRequested) -> str | None:
        if not job.attempts.running:
            return None
        if job.spec.program is not None and not record.now:
            return f"stopping {job.name_of(job.attempts.running)}: its program is asked to end"
        if record.now:
            return f"stopping {job.name_of(job.attempts.running)} now"
        return f"stopping at the end of {job.name_of(job.attempts.running)}"

    def _priority(self, _job: Job, record: ev.PriorityChanged) -> str:
        return f"priority {record.priority} from now on"

    def _prices(self, job: Job, record: ev.PricesChanged) -> str:
        reserved = ", what is reserved stays at the old ones" if job.money.ledger.reserved else ""
        why = f": {record.why}" if record.why else ""
        return f"prices {record.prices['name']} from its next reservation on{reserved}{why}"

    def _accepted(self, _job: Job, record: ev.ModelAccepted) -> str:
        also = f", and {formatting.count(len(record.files), 'file')} next to it" if record.files else ""
        return f"the model file as it is now: SHA-256 {record.sha256}{also}; it was {record.before}"

    def _decide(self, job: Job, record: act.SetAllocation) -> str | None:
        last = self._last.get(job.name)
        self._last[job.name] = record.kind, record.allocation
        if record.kind is EpochKind.PROBE:
            return f"probe {record.allocation}: {_probe_words(record.why)}"
        if last == (record.kind, record.allocation):
            return None
        before = last[1] if last else None
        if before is None or before == record.allocation or job.speed is None:
            return f"next: {record.allocation}{self._cost(job, record.allocation)}"
        gain = _epoch_speed(job, record.allocation) / _epoch_speed(job, before) - 1
        pace = f"{formatting.percent(abs(gain))} {'faster' if gain >= 0 else 'slower'}"
        said = f"next: {record.allocation} instead of {before}, {pace}{self._cost(job, record.allocation)}"
        if job.spec.program is None:
            return said
        if record.why and record.why[0].kind is StepKind.PROBE:
            said = f"measures {record.allocation}: {_probe_words(record.why)}"
        return f"{said}; {program_changes.batch_words(job, before, record.allocation)}"

    @staticmethod
    def _cost(job: Job, allocation: Allocation) -> str:
        seconds = forecast.predicted_seconds(job, allocation, 1.0)
        if seconds is None:
            return ""
        cost = forecast.predicted_cost(job, allocation)
        money = f"{formatting.amount(cost)} {_currency(job)}"
        return f": {formatting.duration(seconds.expected)} and {money} an epoch predicted"

    def _run(self, job: Job, record: act.RunEpoch) -> tuple[str, bool]:
        again = f", attempt {record.attempt}" if record.attempt > 1 else ""
        limit = f"at most {formatting.duration(record.deadline)}"
        hold = f"{formatting.money(record.reservation, _currency(job))} reserved"
        return f"{job.name_of(record)} starts with {record.allocation}{again}: {limit}, {hold}", False

    def _finished(self, job: Job, record: ev.EpochFinished) -> str | None:
        if (stopped := record.report.stop_seconds) > 0.0:
            whole = stopped + record.report.train_seconds
            parts = f"{formatting.duration(stopped)} of it before the new ones ran"
            return f"changed workers: {formatting.duration(whole)} from SIGTERM to the first report, {parts}"
        names = Counter(record.report.processes)
        before, last = [None, None, *job.epochs][-2:]
        if last is not None and last.token == record.token and last.regrouped_after(before):
            time = formatting.duration(record.report.train_seconds)
            return f"changed workers in the same process: {time} from the last report before it to the first after it"
        if not names:
            return None
        epoch = next((e.name for e in reversed(job.epochs) if e.token == record.token), None)
        running = formatting.count(names.total(), "process", "processes")
        shown = ", ".join(f"{many} {name}" for name, many in names.most_common(5))
        return f"{epoch}: its code left {running} running ({shown}); they end with its workers"

    def _settle(self, job: Job, record: act.Settle) -> str | tuple[str, bool] | None:
        cost = formatting.money(record.amount, _currency(job))
        if record.charge is Charge.RELEASE:
            if record.amount == 0:
                return None
            return f"{cost} for what was held between epochs", False
        if record.charge is Charge.AHEAD:
            return f"{cost} for the larger gang, which was there before the smaller one had ended"
        if record.charge is Charge.FAILED:
            return f"{cost} for an attempt that did not count", False
        if record.charge is Charge.GRACE:
            time = formatting.duration(record.until - (job.attempts.terminated_at or record.until))
            return f"{cost} for {time} that the program took to end"
        epoch = next((e for e in reversed(job.epochs) if e.token == record.token), None)
        if epoch is None:
            return None
        report = epoch.report
        kind = ""
        if epoch.kind is EpochKind.PROBE:
            kind = f" ({formatting.percent(epoch.fraction)} of the data)"
        elif report.at_epoch not in (None, epoch.ordinal):
            kind = f" (the program's epoch {report.at_epoch:g})"
        measured = {"loss": report.loss, "accuracy": report.accuracy, job.metric: report.value(job.metric)}
        if job.metric != "accuracy":
            del measured["accuracy"]
        known = [f"{name} {formatting.score(value)}" for name, value in measured.items() if value is not None]
        measure = f" {', '.join(known)}" if known else ""
        what = "while they changed" if job.spec.program else f"{report.workers_lost} lost, late or given"
        lost = f" ({what})" if report.workers_lost else ""
        time = formatting.duration(epoch.seconds)
        cost = formatting.money(epoch.cost, _currency(job))
        found = f"; found in: {report.line}" if report.line else ""
        return f"{epoch.name}{kind}: {epoch.allocation}{lost}{measure} in {time}, {cost}{found}"

    def _signalled(self, _job: Job, record: ev.ProgramSignalled) -> str:
        left = f"; it has {formatting.duration(record.grace)} until SIGKILL" if record.grace else ""
        if record.signal == "should_stop()":
            return f"should_stop() is true for the program{left}"
        return f"{record.signal} to the program{left}"

    def _ahead(self, _job: Job, record: act.QueueAhead | ev.AheadStarted | ev.AheadLost) -> str | None:
        match record:
            case ev.AheadStarted():
                return "the larger gang has its nodes; the smaller one makes way"
            case ev.AheadLost():
                return f"the larger gang does not come: {record.message}"
        return f"{record.allocation} are queued while it trains" if record.allocation else None

    def _failed(self, job: Job, record: ev.EpochFailed) -> str:
        if record.reason in (Reason.SUSPENDED, Reason.CANCELLED_BY_USER):
            return "the running epoch was stopped; it does not count"
        if record.reason in (Reason.PROGRAM_ENDED, Reason.PROGRAM_FAILED):
            return f"{record.reason.words}: {record.message}"
        return f"an epoch failed: {record.reason.words} ({record.reason.value}): {record.message}"

    def _back(self, job: Job, record: act.RollBack) -> str:
        where = f"to the checkpoint of {job.epochs[record.epochs - 1].name}" if record.epochs else "to the start"
        return f"back {where}: what came after it is trained again"

    def _ready(self, _job: Job, record: ev.PodReady) -> str | None:
        return f"{record.pod.name} has {', '.join(record.devices)}" if record.devices else None

    def _lost(self, job: Job, record: ev.PodLost) -> str:
        return f"{record.pod.name} is gone: {record.message}"

    def _nodes(self, _job: Job, record: act.ChooseNodes) -> str | None:
        if record.kind is CapacityType.NOTHING:
            return None  # the status says it
        size = f", {record.allocation}" if record.allocation else ""
        return f"takes {record.kind.value} nodes{size}: {record.message}"

    def _notice(self, _job: Job, record: act.NoticeAccount) -> str:
        return notice(record)

    def _enter(self, job: Job, record: act.SetStatus) -> str | tuple[str, bool] | None:
        if record.reason in _SAID_ELSEWHERE:
            return doubt(record.message) or None
        if record.reason in RESUMABLE:
            if job.name in self._stopped:
                return None
            self._stopped.add(job.name)
        state = record.reason.state or State.FAILED
        if state.ended:
            return f"{state.value}: {record.message}"
        if record.reason is Reason.STARTING_FUNCTIONS:
            return f"starts {formatting.starting(record.message)}", False
        return f"{record.reason.words}: {record.message}"


def history(records: Iterable[Any], name: str | None = None) -> Iterator[Line]:
    """The lines of a journal's records, of one job or of all."""
    known: Mapping[str, Job] = {}
    narrator = EventFormatter(lambda: known)
    for record, known in replay(records):  # noqa: B007 - the narrator reads it
        yield from (line for line in narrator.lines(record) if name in (None, line.job))


def _currency(job: Job) -> str:
    return job.price_book.currency


def _probe_words(why: tuple[DecisionStep, ...]) -> str:
    if not why:
        return "measures its speed"
    return why[0].detail


def _epoch_speed(job: Job, allocation: Allocation) -> float:
    seconds = forecast.predicted_seconds(job, allocation, 1.0)
    return 1.0 / seconds.expected if seconds else 1.0


_FORMATTERS: dict[type, Any] = {
    ev.JobSubmitted: EventFormatter._submitted,
    ev.EpochFinished: EventFormatter._finished,
    ev.ResumeRequested: EventFormatter._resumed,
    ev.SuspendRequested: EventFormatter._stopping,
    ev.PriorityChanged: EventFormatter._priority,
    ev.PricesChanged: EventFormatter._prices,
    ev.ModelAccepted: EventFormatter._accepted,
    ev.EpochFailed: EventFormatter._failed,
    ev.PodReady: EventFormatter._ready,
    ev.PodLost: EventFormatter._lost,
    ev.ProgramSignalled: EventFormatter._signalled,
    ev.AheadStarted: EventFormatter._ahead,
    ev.AheadLost: EventFormatter._ahead,
    act.QueueAhead: EventFormatter._ahead,
    act.RollBack: EventFormatter._back,
    act.SetAllocation: EventFormatter._decide,
    act.ChooseNodes: EventFormatter._nodes,
    act.RunEpoch: EventFormatter._run,
    act.Settle: EventFormatter._settle,
    act.SetStatus: EventFormatter._enter,
    act.NoticeAccount: EventFormatter._notice,
}

"""Metrics for Prometheus: the jobs' present state, read at each scrape, and the HTTP answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.money import to_amount
from coach.report.status import device_use, shown_allocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coach.service.operations import Service

#: Bounds of an answer's time, in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)


class Metrics:
    """The page at /metrics. Live jobs have series of their own; ended ones are only counted."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Jobs(service))
        self._requests = Histogram(
            "coach_http_request_seconds",
            "Time that an answer of the API took.",
            ("method", "route", "status"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        journal = Histogram(
            "coach_journal_seconds",
            "Time that a write into the journal took.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        service.handler.timed = journal.observe

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer. Only HTTP's own methods are labels, so that callers cannot create series at will."""
        known = method if method in ("GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"
        self._requests.labels(known, route, str(status)).observe(seconds)

    def page(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)


class _Jobs(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service
        self._events: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._epochs: Counter[EpochKind] = Counter()
        service.handler.observers.append(self._observe)

    def _observe(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        self._events.update(type(record).__name__ for record in (event, *actions))
        if isinstance(event, ev.EpochFailed):
            self._failures[event.reason.value] += 1
        elif isinstance(event, ev.EpochFinished) and (job := self._service.jobs[event.job]).epochs:
            last = job.epochs[-1]
            if last.token == event.token:
                self._epochs[last.kind] += 1

    def collect(self) -> Iterator[Metric]:
        """Read the jobs."""
        jobs = list(self._service.jobs.values())
        states, spent = Counter(job.state for job in jobs), Counter[str]()
        for job in jobs:
            spent[job.price_book.currency] += job.money.ledger.spent
        yield _gauge("jobs", "Jobs in each state.", "state", ((one, states[one]) for one in State))
        money = ((currency, to_amount(amount)) for currency, amount in sorted(spent.items()))
        yield _counter("spent", "Money spent by all jobs.", "currency", money)
        since = "since the service started"
        epochs = ((kind, self._epochs[kind]) for kind in EpochKind)
        yield _counter("epochs", f"Epochs that counted, {since}.", "kind", epochs)
        yield _counter("records", f"Events and actions journalled {since}.", "type", sorted(self._events.items()))
        failures = sorted(self._failures.items())
        yield _counter("epoch_failures", f"Attempts that did not count, {since}.", "reason", failures)
        yield from self._live([job for job in jobs if not job.ended])
        known, now = self._service.handler.accounts, self._service.handler.now()
        accounts = [(f"{one.name} {one.currency}", one) for one in known.present]
        amounts = ((key, to_amount(one.amount)) for key, one in accounts)
        yield _gauge("account_amount", "Money of the present period.", "account currency", amounts)
        left = ((key, to_amount(known.left(one, now))) for key, one in accounts)
        yield _gauge("account_left", "Of it, neither spent nor reserved.", "account currency", left)

    @staticmethod
    def _live(jobs: list[Job]) -> Iterator[Metric]:
        none = Allocation(0, 0)
        held = [(job.name, (shown_allocation(job) if job.attempts.running else None) or none) for job in jobs]
        losses = ((job.name, last.report.loss or 0.0) for job in jobs if (last := job.last_evaluated))
        yield _gauge("job_epoch", "Epochs that counted.", "job", ((job.name, job.full_epoch_count) for job in jobs))
        yield _gauge("job_workers", "Workers of the running epoch.", "job", ((name, at.workers) for name, at in held))
        yield _gauge("job_servers", "Servers of the running epoch.", "job", ((name, at.servers) for name, at in held))
        yield _gauge("job_loss", "Loss after the last epoch that was evaluated.", "job", losses)
        uses = [(job.name, use) for job in jobs if (use := device_use(job)) is not None]
        for name, said in _OF_GPUS.items():
            values = ((job, value) for job, use in uses if (value := getattr(use, name)) is not None)
            yield _gauge(f"job_gpu_{name}", said, "job", values)
        ledgers = [(f"{job.name} {job.price_book.currency}", job.money.ledger) for job in jobs]
        spent = ((key, to_amount(ledger.spent)) for key, ledger in ledgers)
        reserved = ((key, to_amount(ledger.reserved)) for key, ledger in ledgers)
        budgets = ((key, to_amount(ledger.budget)) for key, ledger in ledgers if ledger.budget is not None)
        yield _gauge("job_spent", "Money spent.", "job currency", spent)
        yield _gauge("job_reserved", "Money reserved.", "job currency", reserved)
        yield _gauge("job_budget", "Its own budget, if any.", "job currency", budgets)
        waiting = ((f"{job.name} {job.reason}", 1) for job in jobs if job.state is State.WAITING)
        yield _gauge("job_waiting", "1 while it waits, and for what.", "job reason", waiting)


#: What is said of a job's GPUs: fields of `DeviceUse`.
_OF_GPUS = {
    "busy": "Part of the time in which its GPUs computed lately, 0 to 1.",
    "idle": "Part of the looks at its GPUs at which one did nothing.",
    "memory": "GiB, the most that one of its GPUs held.",
    "watts": "Mean power of one of its GPUs.",
}

#: Values by their labels, in one text with spaces between.
_Values = Iterable[tuple[str, float]]


def _gauge(name: str, said: str, labels: str, values: _Values) -> Metric:
    return _filled(GaugeMetricFamily(f"coach_{name}", said, labels=labels.split()), values)


def _counter(name: str, said: str, labels: str, values: _Values) -> Metric:
    return _filled(CounterMetricFamily(f"coach_{name}", said, labels=labels.split()), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: _Values) -> Metric:
    for labels, value in values:
        family.add_metric(labels.split(), value)
    return family

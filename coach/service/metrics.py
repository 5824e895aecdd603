"""Metrics for Prometheus: the jobs' present state, read at each scrape, and the HTTP answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import State
from coach.core.money import to_amount
from coach.report.status import shown_allocation

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
        states = Counter(job.state for job in jobs)
        family = GaugeMetricFamily("coach_jobs", "Jobs in each state.", labels=["state"])
        for state in State:
            family.add_metric([state.value], states[state])
        yield family
        spent = Counter[str]()
        for job in jobs:
            spent[job.price_book.currency] += job.ledger.spent
        money = CounterMetricFamily("coach_spent", "Money spent by all jobs.", labels=["currency"])
        for currency, amount in sorted(spent.items()):
            money.add_metric([currency], to_amount(amount))
        yield money
        yield from self._counted()
        yield from self._live()
        yield from self._accounts()

    def _counted(self) -> Iterator[Metric]:
        epochs = CounterMetricFamily("coach_epochs", "Epochs that counted, since the service started.", labels=["kind"])
        for kind in EpochKind:
            epochs.add_metric([kind.value], self._epochs[kind])
        yield epochs
        records = CounterMetricFamily(
            "coach_records", "Events and actions journalled since the service started.", labels=["type"]
        )
        for name, count in sorted(self._events.items()):
            records.add_metric([name], count)
        yield records
        failures = CounterMetricFamily(
            "coach_epoch_failures",
            "Attempts that did not count, since the service started.",
            labels=["reason"],
        )
        for reason, count in sorted(self._failures.items()):
            failures.add_metric([reason], count)
        yield failures

    def _live(self) -> Iterator[Metric]:
        values = {
            "epoch": GaugeMetricFamily("coach_job_epoch", "Epochs that counted.", labels=["job"]),
            "workers": GaugeMetricFamily("coach_job_workers", "Workers of the running epoch.", labels=["job"]),
            "servers": GaugeMetricFamily("coach_job_servers", "Servers of the running epoch.", labels=["job"]),
            "loss": GaugeMetricFamily(
                "coach_job_loss", "Loss after the last epoch that was evaluated.", labels=["job"]
            ),
            "spent": GaugeMetricFamily("coach_job_spent", "Money spent.", labels=["job", "currency"]),
            "reserved": GaugeMetricFamily("coach_job_reserved", "Money reserved.", labels=["job", "currency"]),
            "budget": GaugeMetricFamily("coach_job_budget", "Its own budget, if any.", labels=["job", "currency"]),
            "waiting": GaugeMetricFamily(
                "coach_job_waiting", "1 while it waits, and for what.", labels=["job", "reason"]
            ),
        }
        for job in self._service.jobs.values():
            if job.ended:
                continue
            at = shown_allocation(job) if job.running else None
            currency = job.price_book.currency
            values["epoch"].add_metric([job.name], len(job.epochs))
            values["workers"].add_metric([job.name], at.workers if at else 0)
            values["servers"].add_metric([job.name], at.servers if at else 0)
            if last := job.last_evaluated:
                values["loss"].add_metric([job.name], last.report.loss or 0.0)
            values["spent"].add_metric([job.name, currency], to_amount(job.ledger.spent))
            values["reserved"].add_metric([job.name, currency], to_amount(job.ledger.reserved))
            if job.ledger.budget is not None:
                values["budget"].add_metric([job.name, currency], to_amount(job.ledger.budget))
            if job.state is State.WAITING:
                values["waiting"].add_metric([job.name, job.reason.value], 1)
        yield from values.values()

    def _accounts(self) -> Iterator[Metric]:
        known, now = self._service.handler.accounts, self._service.handler.now()
        words = {"amount": "Money of the present period.", "left": "Of it, neither spent nor reserved."}
        values = {
            name: GaugeMetricFamily(f"coach_account_{name}", said, labels=["account", "currency"])
            for name, said in words.items()
        }
        for one in known.present:
            values["amount"].add_metric([one.name, one.currency], to_amount(one.amount))
            values["left"].add_metric([one.name, one.currency], to_amount(known.left(one, now)))
        yield from values.values()

"""What is written of jobs is what would be computed; what is older than the journal is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from coach.core.jobs.events import CancelRequested, SuspendRequested
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.service.local.here import Here
from coach.service.local.quick import Quick, of_journal
from coach.service.local.written import Views
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.report.recorded_jobs import steady_job
from tests.service.conftest import home  # noqa: F401 - a fixture


class Seen:
    """What `Views` needs of a handler."""

    def __init__(self, journal: Journal) -> None:
        self.jobs = journal.jobs()
        self._at = journal.last_at()

    def now(self) -> float:
        return self._at


@contextlib.contextmanager
def kept(home: StateDirectory, world: World) -> Iterator[Journal]:  # noqa: F811
    """A journal of a handler that has written what is shown of its jobs."""
    with contextlib.closing(Journal.write(home.journal(1))) as journal:
        journal.append(world.history)
        seen = Seen(journal)
        views = Views(home, seen, journal)  # type: ignore[arg-type]
        views.observe(SuspendRequested(0.0, "", True), [])
        for name in seen.jobs:
            views.observe(SuspendRequested(0.0, name, True), [])
        views.write_all()
        yield journal


def test_it_is_the_same_as_what_is_computed(home: StateDirectory) -> None:  # noqa: F811
    with kept(home, steady_job()):
        pass
    assert of_journal(home.journal(1), "") is not None
    with Quick(home.path) as quick, Here(home) as here:
        assert quick.list_jobs().jobs == here.list_jobs().jobs
        assert quick.why_job("steady") == here.why_job("steady")
        assert quick.job("steady") == here.job("steady")
        assert "_here" not in vars(quick), "nothing was computed"


def test_what_is_older_than_the_journal_is_computed(home: StateDirectory) -> None:  # noqa: F811
    with kept(home, steady_job()) as journal:
        journal.append([CancelRequested(journal.last_at() + 1.0, "steady")])
    assert of_journal(home.journal(1), "") is None
    with Quick(home.path) as quick, Here(home) as here:
        assert quick.list_jobs() == here.list_jobs()


def test_a_job_whose_handler_was_killed_is_said_to_wait(home: StateDirectory) -> None:  # noqa: F811
    world = World.of(nodes(2, 4.0))
    world.submit(spec("steady", maxEpochs=50))
    world.run(until=lambda: len(world.job("steady").full_epochs) == 3)
    with kept(home, world), Quick(home.path) as quick:
        assert quick.list_jobs().jobs[0].state in ("Training", "Probing")
    with Quick(home.path) as quick, Here(home) as here:
        (row,), (computed,) = quick.list_jobs().jobs, here.list_jobs().jobs
        assert (row.state, row.reason, row.message) == (computed.state, computed.reason, computed.message)
        assert row.message.startswith("its handler ended") and row.eta is None
        assert quick.why_job("steady") == here.why_job("steady")


def test_what_another_version_wrote_is_not_taken(
    home: StateDirectory,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kept(home, steady_job()):
        monkeypatch.setattr("coach.service.local.quick.SHAPE", "another")
    assert of_journal(home.journal(1), "") is None
    with Quick(home.path) as quick:
        assert quick.list_jobs().jobs[0].state == "Succeeded"

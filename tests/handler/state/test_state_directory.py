"""The state folder: names, journals, and what earlier jobs teach."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Node, Resources
from coach.core.errors import PermanentError, UserError
from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.spec.job import TrainingJob
from coach.handler import endpoint
from coach.handler.prior_runs import (
    LEAST_VALUES,
    MOST_CURVES,
    initial_weights,
    known_curves,
    known_epochs,
    known_points,
)
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import JournalBusyError
from coach.handler.state.state_directory import StateDirectory, StoredJob, choose, renamed
from tests.cli.conftest import keep
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.report.recorded_jobs import half_way, one_job, steady_job

NODES = nodes(2, 4.0)
DIGEST = "a" * 64


def job_spec(name: str = "digits", **changes: Any) -> TrainingJob:
    return TrainingJob.from_json(spec(name, **changes))


def past(name: str, state: State = State.TRAINING, *, held: bool = False, at: float = 1.0, **changes: Any) -> StoredJob:
    job = fold.submitted(ev.JobSubmitted(at, name, spec(name, **changes), "file:///c"))
    return StoredJob(replace(job, state=state), Path("journal.db"), held)


def by_name(*found: StoredJob) -> dict[str, StoredJob]:
    return {one.job.name: one for one in found}


# -- where things are -----------------------------------------------------------------------------------------


def test_the_folder_is_coach_home_or_the_xdg_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "here"))
    assert StateDirectory.default().path == tmp_path / "here"
    monkeypatch.delenv("COACH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert StateDirectory.default().path == tmp_path / "data" / "coach"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StateDirectory.default().path == tmp_path / ".local/share/coach"


def test_an_empty_folder_has_no_jobs_and_is_not_made_by_looking(home: StateDirectory) -> None:
    assert home.past() == {}
    assert not home.path.exists()


def test_a_second_handler_gets_a_journal_of_its_own(home: StateDirectory) -> None:
    first = home.open_journal()
    second = home.open_journal()
    assert [first.path.name, second.path.name] == ["journal.db", "journal-2.db"]
    first.close()
    third = home.open_journal()
    assert third.path.name == "journal.db"
    with pytest.raises(JournalBusyError):
        home.open_journal(second.path)
    second.close()
    third.close()


def test_who_leads_by_a_lease_takes_the_locks_of_one_that_is_stopped(home: StateDirectory) -> None:
    stopped = home.open_journal(home.journal(1), 1)
    stopped.beat(1000.0)
    with home.planning(), endpoint.claimed(home):
        home.take_locks()
        with home.planning(), endpoint.claimed(home):
            journal = home.open_journal(home.journal(1), 2)
            assert journal.left_at == 1000.0, "the last heartbeat of the other"
            stopped.beat(5000.0)
            assert home.journal(1).with_suffix(".lock").stat().st_mtime > 5000.0
            assert home.term() == 2
            with pytest.raises(PermanentError, match="took this journal over"):
                stopped.append([ev.CancelRequested(3.0, "late")])
            stopped.close()
            assert journal.held
            journal.close()


def test_jobs_of_all_journals_are_known_and_whether_a_handler_has_them(home: StateDirectory) -> None:
    keep(home, steady_job())
    keep(home, half_way(2), number=2)
    handler = Journal.write(home.journal(2))
    found = home.past()
    handler.close()
    assert {name: (one.held, one.orphan) for name, one in found.items()} == {
        "steady": (False, False),
        "digits": (True, False),
        "pictures": (True, False),
    }
    assert home.past()["digits"].orphan
    assert {record.job for record in home.records(found["digits"])} == {"", "digits"}


def test_a_journal_that_cannot_be_read_is_named(home: StateDirectory) -> None:
    keep(home, steady_job())
    journal = Journal.write(home.journal(1))
    journal._connection.execute("UPDATE records SET body = '{}', sum = NULL WHERE type = 'JobSubmitted'")
    journal.close()
    with pytest.raises(PermanentError, match=r"journal\.db: cannot be read, it may be of another version"):
        home.past()


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentError, match="set COACH_HOME"), StateDirectory(tmp_path / "file").planning():
        pass


# -- names ----------------------------------------------------------------------------------------------------


def test_a_new_name_is_taken_as_it_is() -> None:
    chosen = choose(job_spec(), {})
    assert (chosen.name, chosen.past, chosen.said) == ("digits", None, "")


def test_a_job_left_in_the_middle_goes_on() -> None:
    left = past("digits")
    assert choose(job_spec(), by_name(left)).past is left


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (past("digits", State.SUCCEEDED), "which has succeeded"),
        (past("digits", State.BUDGET_EXHAUSTED), "which has used up its budget"),
        (past("digits", held=True), "which another handler runs"),
        (past("digits", batchSize=7), "had another job file"),
    ],
)
def test_else_the_new_job_gets_the_next_free_name_and_that_is_said(before: StoredJob, said: str) -> None:
    chosen = choose(job_spec(), by_name(before))
    assert (chosen.name, chosen.past) == ("digits-2", None)
    assert said in chosen.said
    assert chosen.said.endswith("this one is called digits-2")
    assert chosen.spec == renamed(job_spec(), "digits-2")


def test_the_youngest_of_a_family_goes_on() -> None:
    family = by_name(past("digits", State.SUCCEEDED, at=1), past("digits-2", at=2), past("digits-3", at=3))
    chosen = choose(job_spec(), family)
    assert (chosen.name, chosen.past) == ("digits-3", family["digits-3"])


def test_a_job_of_another_family_is_left_alone() -> None:
    assert choose(job_spec("digits"), by_name(past("digits-of-others"))).name == "digits"


def test_names_given_away_in_the_same_call_are_taken() -> None:
    assert choose(job_spec(), by_name(past("digits", State.FAILED)), ["digits-2"]).name == "digits-3"
    left = past("digits")
    assert choose(job_spec(), by_name(left), ["digits"]).past is None


def test_a_long_name_stays_a_label() -> None:
    long = "a" * 39 + "b"
    chosen = choose(job_spec(long), by_name(past(long, State.FAILED)))
    assert len(chosen.name) <= 40
    assert TrainingJob.from_json(chosen.spec.to_json()).name == chosen.name == "a" * 38 + "-2"


# -- what earlier jobs measured -------------------------------------------------------------------------------


def measured(**changes: Any) -> list[StoredJob]:
    """A job that has ended, with the digest of its model, and the cluster it ran on."""
    world: World = one_job(model={"file": "file:///m.py", "sha256": DIGEST}, **changes)
    return [StoredJob(world.job("digits"), Path("journal.db"), False, frozenset({NODES}))]


@pytest.fixture(scope="module")
def earlier() -> list[StoredJob]:
    return measured()


def wanted(**changes: Any) -> TrainingJob:
    model = {"file": "file:///elsewhere/m.py", "sha256": DIGEST}
    return job_spec("other", **{"model": model, "budget": {"amount": 1, "currency": "USD"}, **changes})


def test_known_points_are_medians_by_allocation(earlier: list[StoredJob]) -> None:
    job: Job = copy.copy(earlier[0].job)
    job.epochs = [e for e in job.epochs if e.allocation == (1, 1)][:1] * 3
    speed = job.epochs[0].epochs_per_second
    part = job.epochs[0].computing_part
    assert known_points([replace(earlier[0], job=job)], wanted(), NODES) == ((1, 1, speed, part),)
    assert len(known_points(earlier, wanted(), NODES)) == len({e.allocation for e in earlier[0].job.epochs})


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"file": "file:///m.py", "sha256": "b" * 64}},
        {"model": {"file": "file:///m.py"}},
        {"data": {"format": "digits8x8", "size": 100}},
        {"batchSize": 128},
        {"model": {"file": "file:///m.py", "sha256": DIGEST, "args": {"width": 3}}},
        {"microBatch": 8},
        {"epoch": {"samples": 100}},
        {"epoch": {"time": "5m"}},
        {"mode": "async"},
        {"resources": {"worker": {"cpu": "2", "memory": "500Mi"}}},
    ],
)
def test_what_makes_an_epoch_another_one_makes_points_unknown(
    earlier: list[StoredJob], changes: dict[str, Any]
) -> None:
    assert known_points(earlier, wanted(), NODES)
    assert known_points(earlier, wanted(**changes), NODES) == ()


def test_points_of_another_cluster_are_unknown(earlier: list[StoredJob]) -> None:
    other = (Node("node-0", Resources(8.0, 64.0)),)
    assert known_points(earlier, wanted(), other) == ()
    both = replace(earlier[0], nodes=frozenset({NODES, other}))
    assert known_points([both], wanted(), NODES) == ()


def test_speeds_of_another_kind_of_gpu_are_not_known_speeds(earlier: list[StoredJob]) -> None:
    def of(kind: str) -> tuple[Node, ...]:
        return tuple(replace(node, kind=kind) for node in NODES)

    first = [replace(one, nodes=frozenset({of("NVIDIA-H100")})) for one in earlier]
    assert known_points(first, wanted(), of("NVIDIA-H100")) == known_points(earlier, wanted(), NODES)
    assert known_points(first, wanted(), of("Tesla-T4")) == ()
    assert known_points(first, wanted(), of("")) and known_points(earlier, wanted(), of("Tesla-T4"))


def test_known_epochs_are_those_after_which_the_target_had_held_in_earlier_jobs(
    earlier: list[StoredJob],
) -> None:
    job = earlier[0].job
    assert known_epochs(earlier, wanted()) == job.epochs_trained
    assert known_epochs(earlier, wanted(target={"loss": 0.2})) is None
    assert known_epochs(earlier, wanted(optimizer={"learningRate": 0.5})) is None
    assert known_epochs(earlier, wanted(clip={"norm": 1.0})) is None
    assert known_epochs(earlier, wanted(epoch={"fraction": 0.5})) is None
    assert known_epochs(earlier, wanted(init={"checkpoint": "file:///a.npz"})) is None
    assert known_epochs(earlier, wanted(microBatch=8)) == job.epochs_trained
    short = replace(earlier[0], job=replace(job, state=State.BUDGET_EXHAUSTED, epochs=job.epochs[:-1]))
    assert known_epochs([short], wanted()) is None
    assert known_epochs([*earlier, short], wanted()) == job.epochs_trained
    # Another target than the job's own: 0.5 held for the third time in a row.
    third = [e.epochs_trained for e in job.full_epochs if e.report.loss is not None and e.report.loss <= 0.5][2]
    assert third < job.epochs_trained - 1
    assert known_epochs(earlier, wanted(target={"loss": 0.5})) == third
    assert known_epochs([short], wanted(target={"loss": 0.5})) == third
    assert known_epochs(earlier, wanted(target={"loss": 0.5, "epochsInARow": 1})) == pytest.approx(third - 2)


def test_known_curves_are_those_of_the_same_program_whatever_its_arguments(earlier: list[StoredJob]) -> None:
    model = {"file": "file:///m.py", "sha256": DIGEST}
    (known,) = known_curves(earlier, wanted())
    assert known.fall > 0 and known.rate > 0
    assert known_curves(earlier, wanted(optimizer={"learningRate": 0.5}, batchSize=128)) == (known,)
    assert known_curves(earlier, wanted(model={**model, "args": {"width": 3}}, target={"loss": 0.01})) == (known,)
    assert known_curves(earlier, wanted(target={"accuracy": 0.9}))[0] != known, "that of the metric"
    for other in (
        {"model": {**model, "sha256": "b" * 64}},
        {"model": {"file": "file:///m.py"}},
        {"model": {**model, "net": "Other"}},
        {"data": {"format": "digits8x8", "size": 100}},
        {"epoch": {"samples": 100}},
        {"init": {"checkpoint": "file:///a.npz"}},
    ):
        assert known_curves(earlier, wanted(**other)) == (), other
    job = earlier[0].job
    short = replace(earlier[0], job=replace(job, epochs=job.evaluated_epochs[: LEAST_VALUES - 1]))
    assert known_curves([short], wanted()) == ()
    assert len(known_curves(earlier * (MOST_CURVES + 3), wanted())) == MOST_CURVES


def test_a_job_begins_with_the_best_weights_of_the_job_that_it_names(earlier: list[StoredJob]) -> None:
    past = {one.job.name: one for one in earlier}
    (name,), best = past, earlier[0].job.best
    assert best is not None
    assert initial_weights(past, wanted()) is None
    assert initial_weights(past, wanted(init={"checkpoint": "file:///a.npz"})) == "file:///a.npz"
    assert initial_weights(past, wanted(init={"job": name})) == best.report.weights
    with pytest.raises(UserError, match=r"spec.init.job: there is no job 'nobody'; see all"):
        initial_weights(past, wanted(init={"job": "nobody"}))
    with pytest.raises(UserError, match="is of mxnet; a job of pytorch that has trained"):
        initial_weights(past, wanted(init={"job": name}, framework="pytorch"))
    fresh = {name: replace(earlier[0], job=replace(earlier[0].job, epochs=[]))}
    with pytest.raises(UserError, match="has trained no epoch yet"):
        initial_weights(fresh, wanted(init={"job": name}))


def test_the_cluster_of_each_job_is_read_off_the_journal(home: StateDirectory) -> None:
    keep(home, half_way(2))
    assert home.past()["digits"].nodes == {NODES}

"""Today's code reads the journals that each release has left, and decides on their events as that release did."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import events as ev
from coach.core.spec.job import TrainingJob
from coach.handler.state.codec import TYPES
from coach.handler.state.journal import fold
from tests.journals.replay import FOLDER, differences, read

FILES = sorted(FOLDER.glob("*/*.jsonl.gz"))
#: Decisions that differ on purpose since a release: by release and journal, when and why.
CHANGED: dict[tuple[str, str], str] = {}
#: The fields of records and of the job file as of the newest journals, by `python -m tests.journals.record`.
SCHEMA = FOLDER / "schema.json"


def test_there_are_journals_of_every_kind() -> None:
    assert {"kinds", "shared", "faults", "program", "accounts", "spot", "cluster"} <= {
        file.name.partition(".")[0] for file in FILES
    }


@pytest.mark.parametrize("file", FILES, ids=[f"{file.parent.name}-{file.name.partition('.')[0]}" for file in FILES])
def test_every_event_leads_to_the_same_actions(file: Path) -> None:
    recorded = read(file)
    found = list(differences(recorded))
    if why := CHANGED.get((recorded.release, recorded.name)):
        assert found, f"decides as it did then: the exception is no longer needed ({why})"
    else:
        assert not found, found[0]


@pytest.mark.parametrize("file", FILES, ids=[f"{file.parent.name}-{file.name.partition('.')[0]}" for file in FILES])
def test_a_journal_folds_to_jobs_that_have_ended(file: Path) -> None:
    jobs = fold(read(file).records)
    submitted = [record.job for record in read(file).records if isinstance(record, ev.JobSubmitted)]
    assert set(jobs) == set(submitted)
    for job in jobs.values():
        assert job.ended, f"{job.name}: {job.state}, {job.reason}"
        assert job.money.ledger.reserved == 0 and not job.gang.pods
        assert job.money.ledger.budget is None or job.money.ledger.spent <= job.money.ledger.budget
        assert job.money.ledger.spent == sum(job.money.charges.values())


def schema() -> dict[str, object]:
    """The fields of every record, and those of a job file."""
    records = {name: [f"{one.name}: {one.type}" for one in fields(kind)] for name, kind in sorted(TYPES.items())}
    return {"records": records, "job file": _without_words(TrainingJob.model_json_schema())}


def _without_words(found: Any) -> Any:
    """A JSON schema without what only explains it."""
    if isinstance(found, list):
        return [_without_words(one) for one in found]
    if not isinstance(found, dict):
        return found
    words = ("title", "description", "examples")
    return {
        key: _without_words(one) for key, one in found.items() if not (key in words and isinstance(one, str | list))
    }


def test_a_change_of_the_schema_comes_with_a_journal_that_has_it() -> None:
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(schema())), (
        "records or the job file have other fields than the newest journals: "
        "python -m tests.journals.record writes journals with them; the old ones stay"
    )

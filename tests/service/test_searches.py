"""Searches of a service: begun by the API, gone on with by the next service, stopped, and refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from coach.core.jobs import events as ev
from coach.core.jobs.job import Phase
from coach.handler.search.definition import Definition, load
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.training_search import load_search
from coach.platforms.base import EpochOrder
from tests.handler.test_search import RATES, Rates, definition, paid
from tests.service.conftest import Api, serve


def document(**changes: Any) -> dict[str, Any]:
    """The search of tests/handler/test_search.py as a file; `changes` of its spec."""
    made = definition().document(5.0, "USD")
    made["spec"]["template"].pop("budget")
    made["spec"]["template"]["model"] = {"file": "model.py"}
    made["spec"] = {key: value for key, value in {**made["spec"], **changes}.items() if value is not None}
    return made


def body(api: Api, **changes: Any) -> dict[str, Any]:
    return {"file": {"path": str(api.folder / "search.yaml"), "text": yaml.safe_dump(document(**changes))}}


async def finished(api: Api, name: str = "digits") -> dict[str, Any]:
    """The search once nothing of it runs, by long polls."""
    seq = 0
    while True:
        found: dict[str, Any] = await api.get(f"/searches/{name}", after=seq, wait=20)
        if not found["search"]["running"]:
            return found
        seq = found["seq"]


def test_a_search_runs_in_the_service_and_the_api_shows_it(home: StateDirectory) -> None:
    async def main(api: Api) -> None:
        begun = await api.post("/searches", body(api, finalSeeds=2), 201)
        assert begun["search"]["search"] == "digits" and begun["search"]["running"]
        found = await finished(api)
        row, trials = found["search"], found["trials"]
        assert row["outcome"] and row["parameters"] == {"optimizer.learningRate": 0.1}
        assert len(trials) == row["trials"] == 4 and trials[0]["state"] == "best" and trials[0]["job"] == row["job"]
        assert len(row["final_values"]) == 2 and row["final_half"] is not None
        assert (await api.get("/searches"))["searches"] == [row]
        (account,) = (await api.get("/accounts"))["accounts"]
        assert account["spent"] == pytest.approx(row["spent"]) and account["reserved"] == 0.0
        again = await api.post("/searches", body(api, finalSeeds=2), 201)
        assert again["search"]["search"] == "digits" and again["search"]["trials"] == 4, "the same search is the same"
        assert (await finished(api))["search"]["spent"] == row["spent"]

    serve(home, main, Rates())


@pytest.mark.parametrize("stopped", [False, True])
def test_the_next_service_goes_on_with_a_search(home: StateDirectory, stopped: bool) -> None:
    slow, orders = Rates(), 0
    before = slow.on_epoch

    def third_hangs(order: EpochOrder) -> None:
        nonlocal orders
        orders += 1
        slow.epoch_seconds = 60.0 if orders >= 3 else 0.0
        before(order)

    slow.on_epoch = third_hangs

    async def first(api: Api) -> None:
        await api.post("/searches", body(api, pruner="none"), 201)
        await api.until("digits-1", lambda row: row["epoch"] >= 1 and orders == 3)
        if stopped:
            api.service.searches.close()
            answer = api.service._answer(ev.SuspendRequested, "digits-1")
            api.service.handler.suspend(["digits-1"], now=True, by_user=False)
            await answer

    async def second(api: Api) -> None:
        found = await finished(api)
        assert found["search"]["outcome"] == "no trial is left" and found["search"]["trials"] == 4
        assert {row["epochs"] for row in found["trials"]} == {4}, "what was trained counts, and no trial came twice"

    most = 0
    rates = Rates()
    run, rates.on_epoch = rates.on_epoch, lambda order: (count(), run(order))[1]

    def count() -> None:
        nonlocal most
        most = max(most, len({token.rpartition(".")[0] for token in rates.epochs}))

    serve(home, first, slow)
    serve(home, second, rates)
    assert most == 1, "one trial at a time, as was asked for"
    spent, of_jobs = paid(home)
    assert spent == pytest.approx(of_jobs)


def test_a_search_is_stopped_and_goes_on_with_more_money(home: StateDirectory) -> None:
    platform = Rates()
    platform.epoch_seconds = 60.0

    async def main(api: Api) -> None:
        await api.post("/searches", body(api), 201)
        await api.until("digits-1", lambda row: row["state"] == "Training" or row["state"] == "Probing")
        await api.post("/searches/digits/stop", {"now": True})
        found = await finished(api)
        assert found["search"]["outcome"] == "stopped by its user" and found["search"]["trials"] == 1
        assert api.service.jobs["digits-1"].phase is Phase.PAUSED
        platform.epoch_seconds = 0.0
        await api.post("/searches/digits/resume", {"budget": 6.0})
        found = await finished(api)
        assert found["search"]["trials"] == 4 and found["search"]["left"] == pytest.approx(6 - found["search"]["spent"])
        await api.get("/searches/other", 422)

    serve(home, main, platform)
    assert load(home, "digits").stopped is False


def test_a_search_that_nobody_stopped_stays_stopped_with_its_deadline(home: StateDirectory) -> None:
    platform = Rates()
    platform.epoch_seconds = 60.0

    async def main(api: Api) -> None:
        await api.post("/searches", body(api, deadline="500ms"), 201)
        assert (await finished(api))["search"]["outcome"] == "the deadline has passed"

    async def next_one(api: Api) -> None:
        await asyncio.sleep(0)
        assert not (await api.get("/searches/digits"))["search"]["running"]

    serve(home, main, platform)
    serve(home, next_one, Rates())


def test_a_search_whose_first_trial_cannot_be_paid_is_refused(home: StateDirectory) -> None:
    async def main(api: Api) -> None:
        error = await api.post("/searches", body(api, budget={"amount": 1e-6, "currency": "USD"}), 422)
        assert "digits-1: the next epoch at 1x1 needs" in error["error"]

    serve(home, main, Rates())


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"parameters": {"optimizer.learningRate": "0.1,0.1"}}, "parameters.optimizer.learningRate", "twice"),
        ({"parameters": {}}, "spec.parameters", "nothing to search"),
        ({"pruner": "fast"}, "spec.pruner", "freeze-thaw"),
        ({"parallel": 0}, "spec.parallel", "a whole number from 1"),
        ({"budget": None}, "spec.budget", "required"),
        ({"trails": 3}, "spec.trails", "did you mean trials?"),
        ({"template": {**document()["spec"]["template"], "maxEpochs": -1}}, "spec.maxEpochs", "too small"),
    ],
)
def test_mistakes_of_a_file_have_their_line_and_field(
    tmp_path: Any, changes: dict[str, Any], field: str, words: str
) -> None:
    text = yaml.safe_dump(document(**changes))
    with pytest.raises(JobFileError) as wrong:
        load_search(tmp_path / "search.yaml", text.encode(), check_files=False)
    problem = wrong.value.problems[0]
    assert field in problem.field and words in str(problem), str(problem)
    if field != "spec.budget":
        assert field.rpartition(".")[2] in text.splitlines()[problem.line - 1], "the line of the field"


def test_a_search_written_as_a_file_is_the_same_search(tmp_path: Any) -> None:
    sets = (f"optimizer.learningRate={RATES}", "seed=1,2 if optimizer.learningRate=0.1")
    wanted = definition(sets=sets, final_seeds=2, time_limit=90.0, parallel=2)
    text = yaml.safe_dump(wanted.document(5.0, "USD"), sort_keys=False)
    spec, base = load_search(tmp_path / "search.yaml", text.encode(), check_files=False)
    assert spec.budget.amount == 5.0 and Definition.of(spec, base).same(wanted)

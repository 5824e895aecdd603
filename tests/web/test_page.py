"""Three paths through the page that each change must keep open: `make test-web`."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.encoders import jsonable_encoder

from coach import Client
from coach.report.row_types import Step
from coach.service.page.routes import STATIC
from tests.cli.conftest import ROOT
from tests.handler.test_search import definition
from tests.required import missing
from tests.service.conftest import job_text
from tests.web.conftest import Serving, expect

pytestmark = [pytest.mark.web, pytest.mark.processes]

WEB = ROOT / "web"


def tell_one_step(route: Any) -> None:
    """The real reasons with one step of a decision, whichever the job's were."""
    with Client() as coach:
        why = jsonable_encoder(coach.why_job("digits"))
    text = "job digits 1x1 -> 2x1: speed, 0.03794 epochs/s, an epoch costs 8.637e-05"
    step = Step(
        kind="taken",
        before="1x1",
        after="2x1",
        reason="speed",
        gain=0.04,
        unit="epochs/s",
        cost=9e-5,
        text=text,
    )
    route.fulfill(json=why | {"steps": [jsonable_encoder(step)]})


def test_a_job_is_watched_from_the_list_to_its_end(service: Serving, page: Any) -> None:
    budget = {"amount": 0.5, "currency": "USD"}
    service.submit("digits", maxEpochs=200, target={"loss": 0.3, "epochsInARow": 3}, budget=budget)
    page.route("**/why", tell_one_step)
    page.goto(service.address())
    assert page.url.endswith("/ui/#/"), "the code is gone from the address"
    page.get_by_role("link", name="digits", exact=True).click()
    page.get_by_role("heading", name="digits", level=1).wait_for()
    page.get_by_text("✓ Succeeded").wait_for()
    with Client() as coach:
        detail, figures = coach.job("digits"), coach.job_figures("digits")
    points = [one for one in detail.epochs if one.loss is not None]
    page.get_by_text(f"epoch {detail.job.epoch}", exact=True).wait_for()
    expect(page.get_by_role("region", name="Why")).to_contain_text("the target held")
    page.get_by_role("img", name=re.compile(rf"^loss by passes over the data: {len(points)} epochs")).wait_for()
    why = page.get_by_role("region", name="Why")
    why.get_by_text("The decision and what else was considered").click()
    why.get_by_text("1x1 → 2x1: speed, 0.0379 epochs/s, an epoch costs 0.000086 USD", exact=True).wait_for()
    page.get_by_role("button", name="Table of Learning curve").click()
    table = page.get_by_role("region", name="Table: Learning curve")
    expect(table.get_by_role("row")).to_have_count(1 + len(points))
    for title, rows in (
        ("Allocation over time", detail.ledger),
        ("Money", figures.money),
        ("Speed: fitted and measured", detail.speed),
    ):
        page.get_by_role("button", name=f"Table of {title}", exact=False).click()
        table = page.get_by_role("region", name=f"Table: {title}")
        expect(table.get_by_role("row")).to_have_count(1 + len(rows))
    page.get_by_role("link", name="Epochs", exact=True).click()
    epochs = page.get_by_role("region", name="Table: Epochs")
    epochs.wait_for()
    expect(epochs.get_by_role("row")).to_have_count(1 + len(detail.epochs))


def test_a_job_file_with_a_mistake_is_mended_and_submitted_for_its_price(service: Serving, page: Any) -> None:
    text = job_text("mended", maxEpochs=3, budget={"amount": 0.02, "currency": "USD"})
    document = yaml.safe_load(text)
    wrong = text.replace("maxEpochs: 3", "maxEpochs: -3")
    line = wrong.split("\n").index("  maxEpochs: -3") + 1
    page.goto(service.address("/submit"))
    editor = page.get_by_role("textbox", name="Job file")
    editor.fill(wrong)
    page.get_by_role("heading", name="1 mistake").wait_for()
    expect(page.get_by_role("list").first).to_contain_text("spec.maxEpochs")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_role("button", name=f"Line {line}", exact=True).click()
    chosen = editor.evaluate("one => one.value.slice(one.selectionStart, one.selectionEnd)")
    assert chosen == "  maxEpochs: -3"
    editor.fill(text)
    page.get_by_role("heading", name=f"Plan of {document['metadata']['name']}").wait_for()
    page.get_by_role("button", name="Submit: up to 0.02 USD", exact=True).click()
    page.get_by_role("heading", name="mended", level=1).wait_for()
    page.get_by_text("Failed").first.wait_for()
    with Client() as coach:
        assert [job.name for job in coach.list_jobs().jobs] == ["mended"]


def test_jobs_are_found_by_a_label_sorted_noted_cloned_and_their_models_saved(service: Serving, page: Any) -> None:
    budget = {"amount": 0.5, "currency": "USD"}
    service.submit("old", "new", maxEpochs=2, budget=budget)
    service.submit("other", maxEpochs=3, budget=budget, labels={"team": "vision"})
    with Client() as coach:
        while any(job.ended_at is None for job in coach.list_jobs().jobs):
            time.sleep(0.1)
        assert [job.name for job in coach.list_jobs(q="team=vis").jobs] == ["other"]
    page.goto(service.address())
    names = page.locator("th.name a")
    page.get_by_role("button", name="Name").click()
    page.wait_for_function("document.querySelector('th.name a').textContent === 'new'")
    assert names.all_inner_texts() == ["new", "old", "other"]
    page.get_by_role("button", name="Name").click()
    page.wait_for_function("document.querySelector('th.name a').textContent === 'other'")
    page.get_by_role("columnheader", name="Name").and_(page.locator("[aria-sort=descending]")).wait_for()
    page.get_by_role("searchbox").fill("team=vision")
    page.wait_for_function("document.querySelectorAll('th.name a').length === 1")
    page.get_by_role("link", name="other", exact=True).click()
    page.get_by_text("team=vision").wait_for()
    page.get_by_text("Note", exact=True).click()
    page.get_by_role("textbox", name="Note").fill("the one that I keep")
    page.get_by_role("textbox", name="Note").blur()
    page.get_by_role("link", name="Spec", exact=True).click()
    page.get_by_text("maxEpochs: 3").wait_for()
    page.get_by_role("button", name="Clone and edit").click()
    text = page.get_by_role("textbox", name="Job file").input_value()
    assert yaml.safe_load(text)["metadata"] == {"name": "other", "labels": {"team": "vision"}} and "sha256" not in text
    with Client() as coach:
        assert coach.job("other").note == "the one that I keep"


def test_budgets_show_what_is_left_and_who_spent_what(service: Serving, page: Any) -> None:
    with Client() as coach:
        coach.set_account("research", 500, "USD", "month")
        coach.set_account("team-a", 0.02, "USD", "week", parent="research", labels={"team": "vision"})
    service.submit("digits", maxEpochs=200, target={"loss": 0.3, "epochsInARow": 3}, budget={"account": "team-a"})
    page.goto(service.address("/budgets"))
    table = page.get_by_role("table", name="Budgets", exact=True)
    table.get_by_role("row", name=re.compile("^research that name it 500.USD.month")).wait_for()
    table.get_by_role("row", name=re.compile("^team-a with team=vision 0.02.USD.week")).wait_for()
    report = page.get_by_role("table", name="Who spent what")
    report.get_by_role("link", name="digits").wait_for()
    expect(report).to_contain_text("team-a")
    expect(report).not_to_contain_text("research")


def test_a_search_shows_its_best_trial_and_its_money(service: Serving, page: Any) -> None:
    document = definition(sets=("optimizer.learningRate=0.01,0.1",)).document(5.0, "USD")
    document["spec"]["template"] |= {"model": {"file": "model.py"}, "maxEpochs": 3}
    (service.folder / "model.py").write_text("def net(): ...\n")
    with Client() as coach:
        name = coach.start_search(str(service.folder / "search.yaml"), json.dumps(document)).search.search
        page.goto(service.address("/searches"))
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", name=f"Search {name}", level=1).wait_for()
        while (found := coach.search(name)).search.running:
            coach.search(name, after=found.seq, wait=20.0)
    trials = page.get_by_role("table", name="Trials")
    for row in found.trials:
        trials.get_by_role("link", name=row.job, exact=True).wait_for()
    page.get_by_role("table", name="Searches").get_by_text(found.search.outcome).wait_for()


def test_two_jobs_are_chosen_and_compared_and_then_simulated_with_other_money(service: Serving, page: Any) -> None:
    target = {"loss": 0.3, "epochsInARow": 3}
    for name, size in (("small", 32), ("large", 128)):
        budget = {"amount": 0.5, "currency": "USD"}
        service.submit(name, maxEpochs=200, target=target, batchSize=size, budget=budget)
    page.goto(service.address())
    for name in ("small", "large"):
        page.get_by_role("row", name=re.compile(name)).get_by_text("✓ Succeeded").wait_for()
        page.get_by_role("checkbox", name=f"Choose {name}").check()
    page.get_by_role("link", name="Compare 2 jobs").click()
    page.get_by_role("heading", name="Compare 2 jobs", level=1).wait_for()
    differs = page.get_by_role("region", name="Table: What differs")
    differs.get_by_role("row", name="batchSize 32 128").wait_for()
    expect(differs.get_by_role("row")).to_have_count(2)  # the header and one field
    with Client() as coach:
        found = coach.compare_jobs(["small", "large"])
    levels = page.get_by_role("region", name="Table: Money to this loss")
    expect(levels.get_by_role("row")).to_have_count(1 + len(found.levels))
    ends = f"small {found.jobs[0].best[-1]:.4g} after "
    page.get_by_role("img", name=re.compile(rf"^best loss by USD: {re.escape(ends)}")).wait_for()
    page.go_back()
    page.get_by_role("checkbox", name="Choose small").check()
    page.get_by_role("link", name="What if").click()
    page.get_by_label("Policies").fill("coach, static:1x1")
    page.get_by_label("Budget of each job, in USD").fill("0.0001")
    page.get_by_label("Number").fill("2")
    page.get_by_label("Cores").fill("4")
    page.get_by_role("button", name="Simulate").click()
    page.get_by_role("heading", name="Simulated on 2 nodes").wait_for()
    table = page.get_by_role("region", name="Table: Simulated")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table.get_by_role("row", name=re.compile("static:1x1 small .* budget"))).to_have_count(1)
    page.get_by_label("Policies").fill("nonsense")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("alert")).to_contain_text("nonsense")


def test_without_a_code_nothing_is_shown(service: Serving, page: Any) -> None:
    service.submit("secret", maxEpochs=1)
    address = service.address()
    for refused in (f"{service.url}/ui/", f"{service.url}/ui/#login=guessed"):
        page.goto("about:blank")
        page.goto(refused)
        page.get_by_role("heading", name="Not logged in").wait_for()
        assert "secret" not in page.content()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    page.goto("about:blank")
    page.goto(address)
    page.get_by_role("link", name="secret").wait_for()
    page.context.clear_cookies()
    page.goto("about:blank")
    page.goto(address)  # the code was used
    page.get_by_role("heading", name="Not logged in").wait_for()


def test_the_bundle_is_what_its_sources_make(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (WEB / "node_modules/esbuild").is_dir():
        missing("needs Node.js, and: npm ci --prefix web")
    made = tmp_path / "made"
    subprocess.run(["node", "build.mjs", str(made)], cwd=WEB, check=True, capture_output=True)
    names = sorted(path.name for path in STATIC.iterdir())
    assert sorted(path.name for path in made.iterdir()) == names
    _, different, wrong = filecmp.cmpfiles(STATIC, made, names, shallow=False)
    assert (different, wrong) == ([], []), "run: make web"

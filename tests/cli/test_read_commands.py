"""The commands that read jobs, and those that change them without a handler: journals of virtual time."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Node, Resources
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import State
from coach.core.money import to_amount
from coach.handler.endpoint import own_token
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.local.environment import Functions
from coach.platforms.local.function_log import FunctionLog
from coach.report import formatting
from coach.report.row_types import PlanRow
from coach.report.why import why
from coach.service.doctor import Status, checks
from tests.cli.conftest import keep
from tests.cli.test_commands import run, typed
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec
from tests.report.recorded_jobs import BUDGET, half_way, pytorch_job, steady_job, two_jobs

pytestmark = pytest.mark.standard

JOB = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: new}
spec:
  model: {file: model.py}
  data: {format: digits8x8}
  target: {loss: 0.3}
  budget: {amount: 0.05, currency: USD}
  workers: {min: 1, max: 3}
  servers: {min: 1, max: 3}
  resources:
    scheduler: {cpu: 100m, memory: 100Mi}
    server: {cpu: 500m, memory: 200Mi}
    worker: {cpu: "1", memory: 500Mi}
"""


def ended_how(home: StateDirectory, name: str) -> tuple[State, str]:
    job = home.past()[name].job
    return job.state, job.reason.value


# -- why --------------------------------------------------------------------------------------------------


def test_why_shows_the_decision_the_alternatives_and_the_money(
    capsys: pytest.CaptureFixture[str], home: StateDirectory
) -> None:
    keep(home, half_way())
    journal = Journal.write(home.journal(1))  # a handler runs them
    try:
        code, out, _ = run(capsys, "why", "digits")
    finally:
        journal.close()
    assert code == 0
    assert re.search(r"^digits is Training: trains \(with \dx\d\)$", out, re.M)
    assert re.search(r"^  job digits 1x1 -> 2x1: speed, [\d.]+ epochs/s, an epoch costs [\d.]+$", out, re.M)
    line = r"^  \dx\d: [\d.]+s \(.*\), [\d.]+ % (faster|slower), [\d.]+ USD; "
    assert re.search(line + "no gain$", out, re.M)
    assert re.search(line + "no room: no cores left$", out, re.M)
    assert re.search(r"^Done in .*, after \d+ more epochs \(\d+-\d+\)$", out, re.M)
    assert re.search(
        r"^Money: [\d.]+ / 0.05 USD spent, .* reserved; the next epoch may cost [\d.]+ USD; "
        r"kept for \d+ epochs at [\d.]+, at a chance of 5.0 % to run out, [\d.]+ for speed$",
        out,
        re.M,
    )


def test_a_job_without_servers_is_told_by_its_workers(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, pytorch_job(8))
    journal = Journal.write(home.journal(1))
    try:
        for command in (["why", "torch"], ["show", "torch"], ["ps"], ["events", "torch"]):
            code, out, _ = run(capsys, *command)
            assert code == 0
            assert not re.search(r"\b\dx\d|servers?\b", out), out
            told = {
                "why": r"^torch is Training: trains \(with \d workers\)$",
                "show": r"^  workers +\d \(1 to 4 workers\)$",
                "ps": r"^torch .* \d ",
                "events": r" probe 1 worker: ",
            }
            assert re.search(told[command[0]], out, re.M), out
        _, out, _ = run(capsys, "show", "torch", "-o", "csv")
        assert {row["servers"] for row in csv.DictReader(io.StringIO(out))} == {"0"}
        _, out, _ = run(capsys, "ps", "-o", "json")
        [row] = json.loads(out)
        assert row["workers"] > 0 and row["servers"] == 0
    finally:
        journal.close()


def test_why_says_what_the_money_is_kept_for(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    world = World.of(nodes(4, 4.0))
    world.submit(spec("digits", budget={"amount": 0.012, "currency": "USD"}), FaultyDynamics())
    world.run(until=lambda: world.job("digits").full_epoch_count >= 1)
    keep(home, world)
    with closing(Journal.write(home.journal(1))):  # a handler runs it
        code, out, _ = run(capsys, "why", "digits")
    assert code == 0
    assert re.search(r"; what is left is for the cheapest allocation, as \d\d epochs may remain$", out, re.M), out


def test_why_names_the_jobs_that_hold_the_capacity(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    world = World.of(nodes(1, 1.7))
    for name in ("first", "second", "third"):
        world.submit(spec(name, budget=BUDGET), FaultyDynamics())
    world.run(until=lambda: len(world.job("first").epochs) >= 2)
    keep(home, world)
    journal = Journal.write(home.journal(1))
    try:
        code, out, _ = run(capsys, "why", "third", "-o", "json")
        listed = {row["name"]: row for row in json.loads(run(capsys, "ps", "-o", "json")[1])}
    finally:
        journal.close()
    start = listed["third"]["starts_in"]
    assert start["low"] <= start["expected"] <= start["high"]
    assert re.search(r"; expected to start in \S+ \(\S+-\S+\)$", listed["third"]["message"])
    assert listed["first"]["starts_in"] is None
    lines = json.loads(out)["lines"]
    assert code == 0
    assert lines[0].startswith("third is Waiting: ")
    assert "1 job before it in the queue: second" in lines
    assert any(re.match(r"node-0: [\d.]+ of 1.7 cores .* free; first has 3 functions", line) for line in lines)
    assert any(line.startswith("its smallest gang, 1x1, requests 1.6 cores") for line in lines)


def test_why_names_the_gpus_that_a_job_waits_for() -> None:
    nodes = (Node("a", Resources(8.0, 32.0, 1.0)), Node("b", Resources(8.0, 32.0)))
    world = World.of(nodes)
    worker = {"cpu": 1, "memory": "1Gi", "gpu": 1}
    for name in ("first", "second"):
        world.submit(spec(name, resources={"worker": worker}, workers={"max": 1}), FaultyDynamics())
    world.run(until=lambda: len(world.job("first").epochs) >= 1)
    lines = why(world.job("second"), world.reducer.jobs, nodes, world.now).lines
    assert any(line.startswith("its smallest gang") and line.endswith(" and 1 GPU") for line in lines), lines
    assert any(re.match(r"a: .* GiB and 0 of 1 GPUs free; first has", line) for line in lines), lines
    assert any(re.match(r"b: .* GiB free", line) for line in lines)


def test_why_of_a_job_without_a_handler_names_the_command_that_resumes_it(
    capsys: pytest.CaptureFixture[str], home: StateDirectory
) -> None:
    keep(home, half_way())
    code, out, _ = run(capsys, "why", "digits")
    assert code == 0
    assert "its handler ended without stopping it" in out
    assert re.search(r"^Go on from the checkpoint of epoch \d+: coach resume digits$", out, re.M)


# -- events and logs --------------------------------------------------------------------------------------


def test_events_are_those_of_show(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, two_jobs())
    code, out, _ = run(capsys, "events", "digits", "-o", "json")
    events = json.loads(out)
    assert code == 0
    assert events[0]["text"] == "submitted"
    assert events[-1]["text"].startswith("Succeeded: ")
    plain = run(capsys, "events", "digits")[1].splitlines()
    assert [line.split(" ", 2)[2] for line in plain] == [event["text"] for event in events]
    rows = list(csv.DictReader(io.StringIO(run(capsys, "events", "digits", "-o", "csv")[1])))
    assert [row["text"] for row in rows] == [event["text"] for event in events]


def test_following_ends_with_the_job(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, two_jobs())
    journal = Journal.write(home.journal(1))  # its handler runs on, for other jobs
    try:
        code, out, _ = run(capsys, "events", "digits", "-f", "-o", "json")
    finally:
        journal.close()
    assert code == 0
    assert json.loads(out.splitlines()[-1])["text"].startswith("Succeeded: ")


def test_logs_are_shown_in_the_order_of_time(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, steady_job())
    folder = home.logs("steady")
    folder.mkdir(parents=True)

    def entry(second: int, message: str) -> str:
        return json.dumps({"time": f"2026-01-01T00:00:0{second}.000Z", "level": "info", "message": message}) + "\n"

    (folder / "steady-worker-0.log.1").write_text(entry(1, "first"))
    (folder / "steady-worker-0.log").write_text(entry(3, "third") + "no entry at all\n")
    (folder / "steady-server-0.log").write_text(entry(2, "second"))
    code, out, _ = run(capsys, "logs", "steady", "-o", "json")
    assert code == 0
    found = [(line["function"], line["message"]) for line in json.loads(out)]
    assert found == [
        ("steady-worker-0", "first"),
        ("steady-server-0", "second"),
        ("steady-worker-0", "third"),
        ("steady-worker-0", "no entry at all"),
    ]
    code, out, _ = run(capsys, "logs", "steady", "server-0", "-f")  # no process adds lines
    assert (code, out) == (0, "00:00:02 server-0    second\n")


def test_what_a_long_log_has_lost_is_said(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, steady_job())
    for name, lines in (("steady-worker-0", 30), ("steady-server-0", 8)):
        log = FunctionLog(home.logs("steady") / f"{name}.log", name, max_bytes=1000)
        for number in range(lines):
            log.write("info", f"line {number}")
        log.close()
    code, out, err = run(capsys, "logs", "steady")
    assert code == 0 and "worker-0    line 29" in out and "worker-0    line 0\n" not in out
    assert "server-0    line 0\n" in out and "line 7\n" in out
    [said] = err.splitlines()
    assert said.startswith("steady-worker-0: what it printed before 20")
    assert said.endswith(" is gone: a log keeps its last 4 to 8 MiB")


# -- changing jobs without a handler ----------------------------------------------------------------------


def test_a_job_without_a_handler_is_cancelled_in_its_journal(
    capsys: pytest.CaptureFixture[str], home: StateDirectory
) -> None:
    keep(home, half_way())
    before = home.past()
    code, out, _ = run(capsys, "cancel", "digits")
    assert code == 0
    assert out.startswith("digits is cancelled; its checkpoint stays: ")
    after = home.past()
    assert ended_how(home, "digits") == (State.CANCELLED, "CancelledByUser")
    assert after["digits"].job.money.ledger.reserved == 0
    assert after["digits"].job.epochs == before["digits"].job.epochs
    assert ended_how(home, "pictures") == (State.WAITING, "HandlerStopped")
    assert not after["pictures"].stopped


# -- plan -------------------------------------------------------------------------------------------------


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("")
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def test_a_plan_without_a_past_says_what_is_not_known(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    code, out, _ = run(capsys, "plan", str(job_file), "--nodes", "2x4")
    assert code == 0
    assert "20 (3-60), a guess" in out
    assert "unknown   speed: no earlier job with this model" in out
    assert "1x1 first" in out
    # 1.6 cores and 800 MiB at the price book's rates, an hour.
    (line,) = [line for line in out.splitlines() if line.strip().startswith("1x1")]
    assert f"{(1.6 * 0.000024 + 800 / 1024 * 0.0000025) * 3600:.2g}" in line
    assert not home.path.exists()
    (plan,) = json.loads(run(capsys, "plan", str(job_file), "-o", "json")[1])
    rows = typed(list[PlanRow], plan["rows"])
    assert len(rows) == 9
    assert {row.seconds for row in rows} == {None}


def past_of(home: StateDirectory, job_file: Path, *others: dict[str, Any], **changes: Any) -> tuple[World, Path]:
    """Earlier jobs like the file's, kept in `home`, and the file of the nodes that they ran on.

    They are `old`, with `changes` to its spec, and `old-1` and so on, with those of `others`.
    """
    cluster = nodes(2, 4.0)
    model = {"file": f"file://{job_file.parent}/model.py", "sha256": hashlib.sha256(b"").hexdigest()}
    world = World.of(cluster)
    for number, each in enumerate((changes, *others)):
        dynamics = {"dynamics": each.pop("dynamics")} if "dynamics" in each else {}
        name = f"old-{number}" if number else "old"
        world.submit(spec(name, **{"budget": BUDGET, "model": model, **each}), **dynamics)
        world.run()
    keep(home, world)
    file = job_file.parent / "cluster.yaml"
    file.write_text(
        "nodes:\n" + "".join(f"- {{name: {n.name}, cpu: {n.capacity.cpu:g}, memory: 64Gi}}\n" for n in cluster)
    )
    return world, file


def test_a_plan_uses_what_earlier_jobs_of_the_model_measured(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    world, file = past_of(home, job_file)
    code, out, _ = run(capsys, "plan", str(job_file), "--nodes", str(file), "-o", "json")
    (plan,) = json.loads(out)
    assert (code, plan["unknown"], plan["refusal"]) == (0, [], "")
    assert plan["epochs_known"]
    assert plan["chance_of_running_out"] == 0.05
    assert plan["epochs_provided_for"] > plan["epochs"]
    dynamics, old = FaultyDynamics(), world.job("old")
    for row in typed(list[PlanRow], plan["rows"]):
        assert row.seconds is not None and row.seconds_low is not None and row.seconds_high is not None
        assert row.seconds_low <= row.seconds <= row.seconds_high
        if row.measured:
            assert 1 / row.seconds == pytest.approx(dynamics.speed(row.workers, row.servers), rel=0.25)
        assert row.job_seconds == pytest.approx(row.seconds * plan["epochs"])
    assert plan["epochs"] == pytest.approx(old.epochs_trained)
    assert plan["epochs_low"] == pytest.approx(old.epochs_trained / 1.5)
    assert plan["epochs_high"] == pytest.approx(old.epochs_trained * 1.5)
    assert plan["known"][1] == (
        f"epochs: old reached this target after {old.epochs_trained:.0f} passes over the data, "
        f"in {formatting.duration(old.progress.run_seconds)} for {formatting.money(old.money.ledger.spent, 'USD')}"
    )


def test_a_plan_says_how_earlier_runs_that_reached_the_target_differ(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    slow = {"dynamics": FaultyDynamics(loss=lambda x: 1 / (0.2 * x + 0.5) + 0.1)}
    world, file = past_of(home, job_file, slow)
    (plan,) = json.loads(run(capsys, "plan", str(job_file), "--nodes", str(file), "-o", "json")[1])
    first, last = (world.job(name).epochs_trained for name in ("old", "old-1"))
    assert plan["epochs"] == pytest.approx((first + last) / 2)
    assert plan["known"][1].startswith(
        f"epochs: 2 earlier jobs like it reached this target after {first:.0f} to {last:.0f} passes over the data; "
        "the last one, old-1, in "
    )


def test_a_plan_says_how_far_an_earlier_run_came_that_missed_the_target(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    world, file = past_of(home, job_file, maxEpochs=6)
    (plan,) = json.loads(run(capsys, "plan", str(job_file), "--nodes", str(file), "-o", "json")[1])
    old = world.job("old")
    assert not plan["epochs_known"]
    assert plan["known"][1].startswith(
        f"epochs: old ended after {old.epochs_trained:.0f} passes over the data, without this target: "
        f"best loss {old.epochs[-1].report.loss:.4f}, in "
    )
    job_file.write_text(JOB.replace("{loss: 0.3}", "{loss: 0.8}"))
    (plan,) = json.loads(run(capsys, "plan", str(job_file), "--nodes", str(file), "-o", "json")[1])
    held = [epoch for epoch in old.full_epochs if (epoch.report.loss or 1.0) <= 0.8][2]
    cost = formatting.money(sum(epoch.cost for epoch in old.epochs[: held.number]), "USD")
    assert held.number < len(old.epochs)
    assert plan["epochs"] == pytest.approx(held.epochs_trained)
    assert plan["known"][1].startswith(f"epochs: old reached this target after {held.epochs_trained:.0f} passes")
    assert plan["known"][1].endswith(f" for {cost}")


def test_a_plan_for_a_deadline_says_what_the_cheapest_way_costs(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    _, file = past_of(home, job_file)
    arguments = ("plan", str(job_file), "--nodes", str(file))
    (whole,) = json.loads(run(capsys, *arguments, "-o", "json")[1])
    for hours in (0.5, 2.0, 10.0):
        in_time = [row for row in whole["rows"] if row["fits"] and row["job_seconds_high"] <= hours * 3600]
        (plan,) = json.loads(run(capsys, *arguments, "--deadline", f"{hours:g}h", "-o", "json")[1])
        assert plan["rows"] == sorted(in_time, key=lambda row: row["job_cost"])[:1]
        text = run(capsys, *arguments, "--deadline", f"{hours:g}h")[1]
        assert ("none of these is done then" in text) is not in_time
    for when in ("friday", "2999-01-01T18:00"):
        assert f"by {when} (" in run(capsys, *arguments, "--deadline", when)[1]


def test_a_plan_says_that_a_budget_cannot_reach_its_target(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    world, file = past_of(home, job_file)
    arguments = ("plan", str(job_file), "--nodes", str(file))
    spent = to_amount(world.job("old").money.ledger.spent)
    for share, words in (
        (0.2, "reach the target with a chance of at most 0 %"),
        (3.0, "are enough for the target"),
    ):
        text = JOB.replace("amount: 0.05", f"amount: {share * spent:.6f}")
        job_file.write_text(text)
        assert text != JOB
        out = run(capsys, *arguments)[1]
        assert words in out


def test_a_plan_without_a_target_says_how_good_an_earlier_run_became(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    world, file = past_of(home, job_file)
    job_file.write_text(JOB.replace("  target: {loss: 0.3}\n", ""))
    (plan,) = json.loads(run(capsys, "plan", str(job_file), "--nodes", str(file), "-o", "json")[1])
    old = world.job("old")
    assert plan["known"][1].startswith(
        f"epochs: old ended after {old.epochs_trained:.0f} passes over the data: best loss "
        f"{old.epochs[-1].report.loss:.4f}, in "
    )


def test_a_plan_of_budgets_says_what_each_buys_and_what_the_target_takes(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path, tmp_path: Path
) -> None:
    world, file = past_of(home, job_file)
    budgets = [0.002, 0.004, 0.008, 0.03]
    amounts = ",".join(map(str, reversed(budgets)))
    arguments = ("plan", str(job_file), "--nodes", str(file), "--budget", amounts)
    (found,) = json.loads(run(capsys, *arguments, "-o", "json")[1])
    rows, old = found["rows"], world.job("old")
    assert [row["budget"] for row in rows] == budgets
    assert rows[0]["epochs"] < rows[1]["epochs"] < rows[2]["epochs"]
    for row in rows:
        assert row["value_low"] <= FaultyDynamics().loss(row["epochs"]) <= row["value_high"]
    assert rows[0]["gain"] is None and rows[1]["gain"] < rows[2]["gain"] < 0  # the loss falls, less and less
    times = [row["target_seconds"] for row in rows]
    assert times[0] is None and times[3] is not None  # too little, and enough
    assert rows[3]["target_seconds_low"] < times[3] < rows[3]["target_seconds_high"]
    chances = dict(found["chances"])
    assert 0 < chances[0.5] <= chances[0.8] <= chances[0.95]
    cheapest = min(to_amount(epoch.cost) for epoch in old.full_epochs)
    assert chances[0.5] == pytest.approx(old.epochs_trained * cheapest, rel=0.4)
    assert "chance of 80%" in run(capsys, *arguments)[1]
    figure = tmp_path / "plan.svg"
    assert run(capsys, *arguments, "--figure", str(figure))[0] == 0
    drawn = figure.read_text()
    assert "80 % interval" in drawn and "50% chance" in drawn and f"{rows[2]['epochs']} epochs" in drawn


def test_a_plan_of_budgets_in_hours_counts_hours(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    world, file = past_of(home, job_file)
    arguments = ("plan", str(job_file), "--nodes", str(file), "-o", "json", "--budget")
    code, out, said = run(capsys, *arguments, "0.1,1.5coreh")
    assert code == 0, said
    (hours,) = json.loads(out)
    assert hours["currency"] == "coreh" and [row["budget"] for row in hours["rows"]] == [0.1, 1.5]
    total, least = world.job("old").spec.resources.total, world.job("old").minimum
    for row in hours["rows"]:
        assert 0.0 < row["seconds"] * total(least).cpu / 3600 <= row["budget"]
    (money,) = json.loads(run(capsys, *arguments, "0.1,1.5USD")[1])
    assert money["currency"] == "USD" and money["rows"][0]["epochs"] != hours["rows"][0]["epochs"]
    for amounts, words in (
        ("1EUR", "is billed in USD (cloud-functions)"),
        ("1gpuh", "asks for none; resources.worker.gpu, or coreh"),
        ("1,x", "must be amounts above 0"),
    ):
        code, _, said = run(capsys, *arguments, amounts)
        assert code == 2 and words in said


def test_a_plan_of_budgets_after_a_run_that_rested_and_then_dropped_says_what_it_did(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, job_file: Path
) -> None:
    """The curves that are fitted to such values end far from where they do."""
    dynamics = FaultyDynamics(loss=lambda x: 0.7 if x < 5 else 0.05 + 0.65 * 0.3 ** (x - 5))
    dropped = {
        "target": {"accuracy": 0.95},
        "dynamics": dynamics,
        "policy": {"name": "static", "workers": 1, "servers": 1},
    }
    world, file = past_of(home, job_file, **dropped)
    old = world.job("old")
    assert old.state is State.SUCCEEDED
    values = {round(e.epochs_trained): e.report.accuracy for e in old.full_epochs}
    job_file.write_text(JOB.replace("{loss: 0.3}", "{accuracy: 0.95}"))
    each = to_amount(old.epochs[1].cost)
    budgets = [many * each * 1.1 for many in (3, max(values), 1000)]
    words = ("plan", str(job_file), "--nodes", str(file), "--budget", ",".join(f"{x:.9f}" for x in budgets))
    (found,) = json.loads(run(capsys, *words, "-o", "json")[1])
    for row in found["rows"]:
        assert 0.0 <= row["value_low"] <= row["value"] <= row["value_high"] <= 1.0
        if row["epochs"] in values:
            assert row["value"] == pytest.approx(values[row["epochs"]])
    assert found["rows"][0]["epochs"] in values
    assert found["level_low"] <= max(values.values()) <= found["level_high"] <= 1.0
    chances = dict(found["chances"])
    assert chances[0.95] / chances[0.5] == pytest.approx(1.5 ** (1.6449 / 1.2816), rel=1e-3)
    assert found["known"][0].startswith("epochs: old reached this target after ")
    assert found["known"][0] in run(capsys, *words)[1]
    job_file.write_text(JOB.replace("{loss: 0.3}", "{accuracy: 0.95}\n  maxEpochs: 2"))
    (found,) = json.loads(run(capsys, *words, "-o", "json")[1])
    assert [money for _, money in found["chances"]] == [None, None, None], "no money buys a third epoch"


def test_a_plan_of_what_would_be_refused_says_so(capsys: pytest.CaptureFixture[str], job_file: Path) -> None:
    job_file.write_text(JOB.replace('cpu: "1"', 'cpu: "64"'))
    assert "refused" in run(capsys, "plan", str(job_file), "--nodes", "2x4")[1]
    job_file.write_text(JOB.replace("0.05", "0.000001"))
    assert "the budget does not cover one epoch: at 1x1" in run(capsys, "plan", str(job_file))[1]


# -- doctor -----------------------------------------------------------------------------------------------


def found(home: StateDirectory, **more: Any) -> dict[str, tuple[str, str, str]]:
    return {check.name: (check.status.value, check.found, check.next_step) for check in checks(home, **more)}


def test_doctor_names_what_is_amiss_and_the_next_step(
    home: StateDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(home, half_way())
    home.journal(2).write_bytes(b"no journal at all" * 100)
    monkeypatch.setenv("COACH_FUNCTIONS_PYTHON", str(tmp_path / "none"))
    monkeypatch.setenv("COACH_PYTORCH_PYTHON", sys.executable)  # has no torch
    checks = found(home, port=0)
    assert checks["state folder"][0] == "ok"
    status, said, step = checks["journal.db"]
    assert (status, said.startswith("2 jobs, ")) == ("ok", True)
    assert "no handler has it" in said
    assert "coach resume digits" in step
    assert checks["journal-2.db"][0] == "failed"
    assert checks["functions"][0] == "failed"
    assert "make setup" in checks["functions"][2]
    code, out, _ = run(capsys, "doctor")
    assert code == 5
    assert re.search(r"^failed   functions ", out, re.M)


def test_doctor_reports_a_python_without_mxnet(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COACH_FUNCTIONS_PYTHON", sys.executable)
    assert Functions.find().python == Path(sys.executable)
    monkeypatch.setenv("COACH_PYTORCH_PYTHON", sys.executable)  # has no torch
    checks = found(home)
    status, said, step = checks["MXNet"]
    assert status == "failed"
    assert "libgomp" in said or "mxnet" in said
    assert step
    assert checks["PyTorch"][0] == "warning" and "No module named" in checks["PyTorch"][1]


@pytest.mark.pytorch
def test_pytorch_alone_is_enough_for_doctor(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COACH_FUNCTIONS_PYTHON", sys.executable)  # has no MXNet
    checks = found(home)
    assert checks["MXNet"][0] == "warning" and "only MXNet jobs need it" in checks["MXNet"][1]
    assert checks["PyTorch"][:1] == ("ok",)


def test_doctor_in_a_handlers_pod_looks_for_no_functions_there(
    home: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COACH_HANDLER", "coach-handler")
    monkeypatch.setenv("COACH_FUNCTIONS_IMAGE", "coach-functions:9")
    found = {check.name: check for check in checks(home)}
    assert found["functions"].found == "pods of coach-functions:9, placed by the scheduler coach"
    assert "scheduler" not in found
    monkeypatch.setenv("COACH_SCHEDULER_NAME", "default-scheduler")
    (warned,) = [check for check in checks(home) if check.name == "scheduler"]
    assert (
        warned.status is Status.WARNING and "one by one" in warned.found and "scheduler.kind=coach" in warned.next_step
    )
    assert "without a volume" in found["functions"].next_step
    assert not {"MXNet", "PyTorch", "functions' port"} & found.keys()


def test_doctor_looks_at_what_only_some_need(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    from coach.core.optional_feature import OptionalFeature

    monkeypatch.setenv("PATH", "/nowhere")
    for framework in ("FUNCTIONS", "PYTORCH"):  # doctor need not import them
        monkeypatch.setenv(f"COACH_{framework}_PYTHON", "/none")
    checks = found(home, also=(OptionalFeature.GO, OptionalFeature.KUBERNETES))
    assert checks["Go"] == ("failed", "there is no go on the PATH", checks["Go"][2])
    assert checks["kubectl"][0] == checks["cluster"][0] == "failed"


@pytest.mark.mxnet
@pytest.mark.usefixtures("functions")
def test_doctor_is_content_where_jobs_can_run(home: StateDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "-o", "json")
    assert (code, [check for check in json.loads(out) if check["status"] == "failed"]) == (0, [])


# -- what a service and its jobs leave in the journal -----------------------------------------------------


def test_only_what_its_user_stopped_stays_stopped(home: StateDirectory) -> None:
    world = half_way()
    keep(home, world)
    journal = Journal.write(home.journal(1))
    journal.append([ev.SuspendRequested(world.now, "digits", True)])
    journal.append([ev.SuspendRequested(world.now, "pictures", True, by_user=False)])
    journal.close()
    past = home.past()
    assert (past["digits"].stopped, past["pictures"].stopped) == (True, False)
    journal = Journal.write(home.journal(1))
    journal.append([ev.ResumeRequested(world.now + 1, "digits")])
    journal.close()
    assert not home.past()["digits"].stopped


def test_a_token_is_made_once_and_for_its_owner_alone(home: StateDirectory) -> None:
    home.path.mkdir()
    file = own_token(home)
    text = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(text.strip()) >= 40
    assert own_token(home).read_text() == text


def test_a_job_that_holds_nothing_is_not_said_to_have_been_decided_for() -> None:
    """The allocation from before its preemption is over."""
    world = World.of(nodes(1, 4.0))
    world.submit(spec("first", budget=BUDGET), FaultyDynamics())
    world.run(until=lambda: len(world.job("first").full_epochs) >= 1)
    job = world.job("first")
    assert any(line.startswith("Decided for ") for line in why(job, {"first": job}, nodes(1, 4.0), world.now).lines)
    job.gang.pods = {}
    assert not any(line.startswith("Decided") for line in why(job, {"first": job}, nodes(1, 4.0), world.now).lines)

"""`coach simulate` and `coach experiment`: what a user asks and gets."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training.fidelity import read
from coach.cli.main import invoke
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.service.local.read_only import ReadOnlyService
from coach.studies.study import arrival_times
from coach_research import scenario
from coach_research.experiment import run_scenario, write_outcome

pytestmark = pytest.mark.standard

TRACES = Path("tests/data/traces")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))


def simulate(*arguments: str) -> int:
    return invoke(["simulate", *arguments, "--processes", "1"])


def test_a_what_if_answers_with_a_row_a_policy_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "answer.svg"
    code = simulate(
        "jobs/a.yaml", "jobs/b.yaml", "--nodes", "10x32", "--policy", "coach,drf,static:2x2", "--epoch-seconds", "5",
        "--epochs", "8", "--figure", str(figure), "-o", "json",
    )  # fmt: skip
    shown = capsys.readouterr()
    rows = json.loads(shown.out)
    assert code == 0
    assert [row["policy"] for row in rows] == ["coach", "drf", "static:2x2"]
    assert all(row["reached"] == 2 and row["completion_mean"] > 0 and 0 < row["cpu_used"] < 1 for row in rows)
    assert rows[0]["jobs_better"] == rows[0]["jobs_worse"] == 0
    assert "assumed: speeds as of resnet-50, 5 s an epoch" in shown.err
    assert figure.read_text().startswith("<?xml")


def test_a_what_if_can_be_looked_at_like_real_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "what-if"
    question = ("jobs/a.yaml", "jobs/b.yaml", "--nodes", "10x32", "--epochs", "8", "--policy", "coach,drf")
    assert simulate(*question, "--home", str(home), "-o", "json") == 0
    shown = capsys.readouterr()
    assert f"the run of coach with seed 1: COACH_HOME={home} coach ui" in shown.err

    service = ReadOnlyService(StateDirectory(home))
    rows = [service.view(name) for name in service.jobs]
    service.close()
    assert len(rows) == 2 and {row.state for row in rows} == {"Succeeded"}
    mean = sum(job.progress.ended_at - job.progress.submitted_at for job in service.jobs.values()) / 2
    assert mean == pytest.approx(json.loads(shown.out)[0]["completion_mean"], rel=1e-3)
    monkeypatch.setenv("COACH_HOME", str(home))
    name = rows[0].name
    assert invoke(["why", name]) == 0 and "the target held" in capsys.readouterr().out
    assert invoke(["plot", name, "--dir", str(tmp_path / "figures")]) == 0
    assert (tmp_path / "figures" / f"{name}.png").exists()


def test_a_what_if_warns_as_coach_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("jobs/a.yaml").read_text()
    file = tmp_path / "suspended.yaml"
    file.write_text(re.sub(r"^  budget: .*$", r"\g<0>\n  suspend: true", text, flags=re.MULTILINE))
    assert simulate(str(file), "--assume", "--epochs", "3", "-o", "csv") == 0
    line = 1 + file.read_text().splitlines().index("  suspend: true")
    warned = re.findall(r"^warning: (.*)$", capsys.readouterr().err, re.MULTILINE)
    right = "nothing on this machine: only a cluster obeys it"
    assert warned == [f"{file}:{line}:12 spec.suspend: suspended (true) - {right}"]


#: Room for one of the two jobs, which come at the same time.
ONE_OF_TWO = ("jobs/a.yaml", "jobs/b.yaml", "--nodes", "1x0.9", "--assume")


def test_a_what_if_compares_placements_and_says_which_a_row_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "answer.svg"
    asked = (*ONE_OF_TWO, "--placement", "gang,default", "--policy")
    assert simulate(*asked, "static:2x2,coach,kod2", "--figure", str(figure), "-o", "json") == 0
    rows = {(row["policy"], row["placement"]): row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [
        ("static:2x2", "gang"), ("static:2x2", "default"), ("coach", "gang"), ("coach", "default"), ("kod2", "own"),
    ]  # fmt: skip
    # Each of the two holds what the other one waits for, until the end of days.
    assert rows["static:2x2", "gang"]["reached"] == 2
    stuck = rows["static:2x2", "default"]
    assert (stuck["jobs"], stuck["finished"], stuck["reached"], stuck["completion_mean"]) == (2, 0, 0, None)
    assert rows["coach", "default"]["jobs_worse"] == 2
    assert "coach, default" in figure.read_text()
    assert simulate(*asked, "static:2x2", "--figure", "none") == 0
    shown = capsys.readouterr().out
    assert re.search(r"POLICY +static:2x2 +static:2x2, default", shown)
    assert "static:2x2, default: of 2 jobs in all runs: 2 not finished (StartingFunctions)" in shown


ALL_KINDS = ("coach", "static:1x1", "fitgpp", "kod2", "specon", "round-robin")


@pytest.fixture
def too_dear(tmp_path: Path) -> tuple[str, ...]:
    """Two jobs of 0.02 USD each, whose epochs are too long for it."""
    text = re.sub(r"^  timeLimit: .*\n", "", Path("jobs/a.yaml").read_text(), flags=re.MULTILINE)
    model = Path("functions/models/mlp.py").absolute()
    text = text.replace("../functions/models/mlp.py", str(model))
    files = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for file in files:
        file.write_text(text.replace("name: a\n", f"name: {file.stem}\n"))
    policies = ("--policy", ",".join(ALL_KINDS))
    return (
        *map(str, files),
        "--nodes",
        "2x2",
        "--assume",
        "--epoch-seconds",
        "200",
        *policies,
        "--figure",
        "none",
    )


def test_all_policies_of_a_table_are_held_to_the_budgets(
    too_dear: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*too_dear) == 0
    shown = capsys.readouterr()
    assert "fidelity system: probes yes, budgets and time limits yes;" in shown.err
    ends = re.findall(r"^(\S+): of 2 jobs in all runs: (.*)$", shown.out, re.MULTILINE)
    assert ends == [(name, "2 BudgetSpent") for name in ALL_KINDS]
    assert simulate(*too_dear, "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["fidelity"] for row in rows} == {"system"}
    assert all(0 < row["money"] <= 2 * 0.02 for row in rows)


def test_two_jobs_of_one_account_spend_no_more_than_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for name in ("a", "b"):
        text = Path(f"jobs/{name}.yaml").read_text()
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(re.sub(r"budget: .*", "budget: {account: team-a}", text, count=1))
    asked = (*map(str, files), "--nodes", "2x4", "--assume", "--policy", "coach", "-o", "json")
    assert simulate(*asked) == 0
    shown = capsys.readouterr()
    assert "the account team-a is not simulated: it is taken to have all the money" in shown.err
    (free,) = json.loads(shown.out)
    assert free["reached"] == 2
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    amount = round(0.6 * free["money"], 6)
    assert invoke(["budget", "set", "team", f"{amount:.6f}USD"]) == 0
    assert invoke(["budget", "set", "team-a", "50USD/month", "--in", "team"]) == 0
    capsys.readouterr()
    assert simulate(*asked) == 0
    shown = capsys.readouterr()
    assert f"the account team has {amount:g} USD, and nothing is spent" in shown.err
    assert "the account team-a has 50 USD in any 30d" in shown.err
    (paid,) = json.loads(shown.out)
    assert 0 < paid["money"] <= amount and paid["reached"] < 2


def test_an_unknown_account_is_not_simulated_and_the_command_says_so(
    too_dear: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(next(word for word in too_dear if word.endswith(".yaml")))
    file.write_text(re.sub(r"budget: .*", "budget: {account: team-a}", file.read_text(), count=1))
    assert simulate(*too_dear, "--policy", "fifo") == 0
    assert "the account team-a is not simulated: it is taken to have all the money" in capsys.readouterr().err


def test_at_trace_fidelity_no_policy_has_a_budget_and_the_command_says_so(
    too_dear: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*too_dear, "--fidelity", "trace", "-o", "json") == 0
    shown = capsys.readouterr()
    assert "fidelity trace: probes no, budgets and time limits no;" in shown.err
    assert "the budgets of 2 jobs are ignored" in shown.err
    rows = json.loads(shown.out)
    assert [(row["fidelity"], row["reached"]) for row in rows] == [("trace", 2)] * len(ALL_KINDS)
    assert all(row["money"] > 2 * 0.02 for row in rows)


def test_a_deadlock_is_given_up_after_its_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    placement = "default:deadlock_timeout=600"
    asked = (*ONE_OF_TWO, "--policy", "static:2x2", "--placement", placement)
    assert simulate(*asked, "--figure", "none", "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["placement"], row["killed"], row["finished"], row["money"]) == (placement, 2, 0, 0)


OWN = str((TRACES / "own.csv").absolute())


def test_a_figure_is_drawn_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = ("--trace", OWN, "--nodes", "2x8x32x2", "--policy", "fifo")
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "simulation.png"
    mine.write_text("my own")
    assert simulate(*trace) == simulate(*trace, "-o", "csv") == simulate(*trace, "--figure", "none") == 0
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("simulation.png", "my own")]
    assert simulate(*trace, "-o", "csv", "--figure", "answers/one.png") == 0
    assert "figure: answers/one.png" in capsys.readouterr().err
    assert (tmp_path / "answers" / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("policy", ["fifo,srtf", "drf,coach,fitgpp,kod2,specon,tf-operator,static:1"])
def test_a_job_that_can_never_run_is_named_and_in_nobody_s_way(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("job,arrival,work,cpu\nhuge,0,50,9999\na,10,50,4\nb,20,50,4\n")
    question = ("--trace", str(file), "--nodes", "8x64", "--policy", policy)
    assert simulate(*question, "--figure", str(tmp_path / "answer.png")) == 0
    shown = capsys.readouterr().out
    why = "needs 1 worker x 9999 cpu, best partial fit 0, and the largest node has 64 cpu 256 GiB"
    assert shown.count(f"NeverFits: job huge {why}") == 1
    for name in policy.split(","):
        assert f"{name}: of 3 jobs in all runs: 2 finished, 1 NeverFits" in shown
    assert simulate(*question, "-o", "json") == 0
    for row in json.loads(capsys.readouterr().out):
        assert (row["jobs"], row["reached"], row["never_fit"]) == (3, 2, [{"job": "huge", "why": why}])
    assert not recwarn.list


def test_a_figure_of_jobs_that_all_never_run_has_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    figure = tmp_path / "answer.svg"
    trace = f"philly:{TRACES / 'philly-month-with-gaps.json'}"
    assert simulate("--trace", trace, "--nodes", "8x64", "--policy", "fifo", "--figure", str(figure)) == 0
    assert "fifo: of 2 jobs in all runs: 2 NeverFits" in capsys.readouterr().out
    assert "fifo (no job ends)" in figure.read_text()
    assert not recwarn.list


def test_a_job_file_that_never_fits_is_named_in_the_words_of_a_live_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "huge.yaml"
    text = Path("jobs/a.yaml").read_text().replace("../functions", str(Path("functions").absolute()))
    file.write_text(re.sub(r"cpu: [0-9]+m", "cpu: 500", text))
    for fidelity in ("system", "trace"):
        asked = (str(file), "jobs/b.yaml", "--assume", "--epochs", "3", "--fidelity", fidelity, "-o", "json")
        assert simulate(*asked) == 0
        (row,) = json.loads(capsys.readouterr().out)
        ((job,),) = [row["never_fit"]]
        assert job["job"] == "a" and job["why"].endswith("and the largest node has 8 cpu 32 GiB")
        assert row["reached"] == 1


def test_what_was_read_left_out_and_assumed_of_a_trace_is_always_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--trace", str(TRACES / "left-out-lines.swf"), "--nodes", "8x64", "--policy", "fifo")
    assert simulate(*asked) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[:4] == [
        "trace: 7 jobs read, 4 simulated, 3 left out",
        "left out: 2 jobs, its run time is not known: 2 (line 6), 4 (line 8)",
        "left out: 1 job, its run time is 0: 3 (line 7)",
        "assumed: 3 jobs, no memory, as none is known: 1 (line 5), 5 (line 9), 7 (line 12)",
    ]
    assert simulate(*asked, "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["jobs_read"] == 7 and [left["line"] for left in row["jobs_left_out"]] == [6, 7, 8]
    assert simulate(*asked, "-o", "csv") == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert [row[name] for name in ("jobs_read", "jobs_left_out", "assumed", "never_fit")] == [
        "7",
        "3",
        "3",
        "1",
    ]
    assert simulate("--trace", OWN, "--policy", "fifo") == 0
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["trace: 3 jobs read, 3 simulated, 0 left out", "assumed: nothing"]


def test_jobs_and_what_happens_over_time_are_written_as_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, timeline = tmp_path / "jobs.csv", tmp_path / "timeline.csv"
    written = ("--jobs", str(jobs), "--timeline", str(timeline))
    assert simulate("--trace", OWN, "--policy", "fifo,drf", "--nodes", "1x4x16x2", *written) == 0
    shown = capsys.readouterr()
    assert f"jobs: {jobs}" in shown.err and f"timeline: {timeline}" in shown.err
    assert re.search(r"^wait, mean s +\d", shown.out, re.MULTILINE) and re.search("^GPU used", shown.out, re.MULTILINE)
    of_jobs, over_time = (list(csv.DictReader(file.read_text().splitlines())) for file in (jobs, timeline))
    assert [(row["policy"], row["job"]) for row in of_jobs] == [
        (policy, job) for policy in ("fifo", "drf") for job in ("early", "gang", "late")
    ]
    assert {row["policy"] for row in over_time} == {"fifo", "drf"}

    assert simulate("jobs/a.yaml", "--assume", "--epochs", "3", "--seeds", "2", *written) == 0
    (first, second) = csv.DictReader(jobs.read_text().splitlines())
    assert (first["seed"], second["seed"], first["why"]) == ("1", "2", "TargetReached")
    assert float(first["cost"]) > 0 and int(first["workers"]) >= 1


def test_many_left_out_are_a_short_list_with_a_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "many.swf"
    rows = [f"{n} 1 0 {int(n == 1)} 1 -1 8 1 9 -1 1 1 1 1 1 1 -1 -1" for n in range(1, 100)]
    file.write_text("\n".join(rows))
    assert simulate("--trace", str(file), "--policy", "fifo", "-o", "json") == 0
    shown = capsys.readouterr()
    assert (
        "left out: 98 jobs, its run time is 0: 2 (line 2), 3 (line 3), 4 (line 4), 5 (line 5), 6 (line 6) and 93 more "
        "(-o json has all)\n" in shown.err
    )
    assert len(json.loads(shown.out)[0]["jobs_left_out"]) == 98


def test_the_same_question_has_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for _ in range(2):
        simulate(
            "--trace",
            str(TRACES / "own.csv"),
            "--nodes",
            "2x8x32x2",
            "--policy",
            "fifo",
            "--figure",
            "none",
            "-o",
            "csv",
        )
        answers.append(capsys.readouterr())
    assert answers[0].out == answers[1].out
    assert "fidelity trace: probes no, budgets and time limits no;" in answers[0].err
    (row,) = csv.DictReader(answers[0].out.splitlines())
    assert (row["policy"], row["reached"], row["killed"]) == ("fifo", "3.0", "0.0")


def test_a_workload_of_the_archive_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    trace = f"swf:{TRACES / 'small.swf'}"
    assert simulate("--trace", trace, "--nodes", "4x4", "--policy", "fifo,drf", "-o", "json") == 0
    assert [row["finished"] for row in json.loads(capsys.readouterr().out)] == [3, 3]


def test_arrivals() -> None:
    assert arrival_times("every:60", 3, 1) == (0, 60, 120)
    assert arrival_times("0", 2, 1) == (0, 0)
    drawn = arrival_times("poisson:10", 2000, 1)
    assert drawn[0] == 0
    assert np.mean(np.diff(drawn)) == pytest.approx(10, rel=0.1)


def test_every_scenario_can_be_read_and_has_its_module() -> None:
    for name in scenario.names():
        one = scenario.load(name)
        assert one.name == name
        assert callable(one.module().replicate)


def test_a_scenario_compares_its_runs_with_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coach_research import experiments

    module = type("Module", (), {"replicate": staticmethod(lambda parameters, seed: {"m": parameters["x"] + seed})})
    monkeypatch.setitem(__import__("sys").modules, f"{experiments.__name__}.toy", module)
    (tmp_path / "toy.yaml").write_text(
        "{name: toy, title: T, paper: P, experiment: toy, parameters: {x: 10}, seeds: 3, quick_seeds: 2,"
        " targets: [{measure: m, paper: 12.5, tolerance: 0.05, reason: R}, {measure: m, paper: 20},"
        " {measure: m, paper: 12.1, calibrated: true}, {measure: m, paper: 24, variant: true}]}"
    )
    outcome = run_scenario(scenario.load(str(tmp_path / "toy.yaml")), processes=1)
    near, far, fitted, other = outcome.comparisons()
    assert (near.ours, near.low, near.high, near.runs) == (12, 11, 13, 3)
    assert (near.relative, far.relative, other.relative) == pytest.approx((-0.04, -0.4, -0.5))
    assert (near.within, far.within, fitted.within) == (True, False, True)
    assert [row.role for row in (near, far, fitted, other)] == ["open", "judged", "calibrated", "variant"]
    assert near.half_width == pytest.approx(2.484, abs=1e-3)  # t(0.975, 2) / sqrt(3)
    assert near.relative_half_width == pytest.approx(near.half_width / 12.5)
    write_outcome(outcome, tmp_path)
    assert (
        "| m | 12.5 | 12 ± 2.5 | -4 ± 20 % | 5 % | yes |  | open | R |"
        in (tmp_path / "toy" / "comparison.md").read_text()
    )
    assert (tmp_path / "toy" / "measures.csv").read_text().splitlines() == [
        "measure,seed,value", "m,1,11.0", "m,2,12.0", "m,3,13.0",
    ]  # fmt: skip


def test_a_paper_s_number_is_not_zero_as_differences_are_relative_to_it() -> None:
    with pytest.raises(ValueError, match="m: paper is 0"):
        scenario.Target(measure="m", paper=0)


def test_an_unknown_experiment_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["experiment", "nothing"]) == 2
    assert "there is no experiment 'nothing'" in capsys.readouterr().err


def test_last_week_is_asked_what_it_would_have_cost_on_other_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = next(one for one in read(Path("results/simulation/journals")) if len(one.runs) > 1)
    journal = Journal.write(tmp_path / "journal.db")
    journal.append(recorded.records)
    journal.close()
    assert simulate("--journal", str(tmp_path), "--nodes", "1x2", "--policy", "coach,drf", "-o", "json") == 0
    shown = capsys.readouterr()
    assert "speed, curve and arrival as in its real run" in shown.err
    rows = json.loads(shown.out)
    assert [row["policy"] for row in rows] == ["coach", "drf"]
    for row in rows:
        assert row["jobs"] == row["reached"] == len(recorded.runs)
        assert 0.3 < row["completion_mean"] / np.mean(list(recorded.seconds.values())) < 3

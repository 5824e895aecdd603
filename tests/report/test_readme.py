"""README quotes measured numbers: each stands in a table that a benchmark wrote."""

import csv
import math
import re
from pathlib import Path
from statistics import fmean, median

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
#: As words for counts.
NUMBERS = dict(enumerate(
    ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
))  # fmt: skip


@pytest.fixture(scope="module")
def readme() -> str:
    """Its text in one line, so that a sentence may be broken anywhere."""
    return " ".join((ROOT / "README.md").read_text().split())


def rows(table: str) -> list[dict[str, str]]:
    with (RESULTS / table).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_demo_is_as_long_and_as_dear_as_measured(readme):
    grid = rows("one-machine/static-grid.csv")
    seconds = {
        policy: median(float(row["completion_seconds"]) for row in grid if row["policy"] == policy)
        for policy in {row["policy"] for row in grid}
    }
    statics = sorted((name for name in seconds if name != "coach"), key=seconds.__getitem__)
    for policy, said in (("coach", "Coach"), (statics[0], "best static"), (statics[-1], "worst static")):
        of = [row for row in grid if row["policy"] == policy]
        epochs = median(int(row["epochs"]) for row in of)
        cost = median(float(row["cost"]) for row in of)
        line = rf"\| {said}[^|]*\| {epochs:g} \| {seconds[policy]:.0f} s \| {cost:.4f} USD \|"
        assert re.search(line, readme), line


def test_the_overhead_and_the_way_of_the_thesis_are_as_measured(readme):
    overhead = (RESULTS / "one-machine" / "overhead.md").read_text()
    changed, unchanged = re.findall(r"\(w,s\) \w+ *\| \d+ *\| ([\d.]+)", overhead)
    share = re.findall(r"end included: ([\d.]+)%", overhead)[0]
    assert f"spent {share} % of the time: {float(unchanged):.2f} s an epoch" in readme
    assert f"did not change, {float(changed):.2f} s when it did" in readme
    thesis = [row for row in rows("one-machine/thesis-way.csv") if row["way"] == "thesis"]
    assert f"| {median(float(row['completion_seconds']) for row in thesis):.0f} s |" in readme
    table = (RESULTS / "one-machine" / "thesis-way.md").read_text()
    faster = re.findall(r"Coach is ([\d.]+)x faster", table)[0]
    assert f"thesis's way it is {faster} times as fast" in readme
    coach = [
        float(r["completion_seconds"]) for r in rows("one-machine/static-grid.csv") if r["policy"] == "coach"
    ]
    assert f"it took {min(coach):.0f} to {max(coach):.0f} s in the three repeats" in readme


@pytest.mark.parametrize(
    ("table", "subjects", "measure", "line"),
    [
        ("speed", ["mean"], "speed error, 8 chosen", "error of predicted speed, 8 measured points"),
        ("speed", ["mean"], "speed lost, 8 chosen", "speed lost by taking the predicted best, 8 points"),
        (
            "last-epoch",
            ["Cifar10, by the rule", "LeNet, by the rule"],
            "error at 50%",
            "error of the predicted last epoch half-way, CIFAR / LeNet",
        ),
    ],
)
def test_the_estimators_are_as_good_as_measured(readme, table, subjects, measure, line):
    found = [
        row
        for subject in subjects
        for row in rows(f"estimators/{table}.csv")
        if (row["subject"], row["measure"]) == (subject, measure)
    ]
    assert len(found) == len(subjects)
    digits = 1 if len(found) == 1 else 0
    said = [
        " / ".join(f"{100 * float(row[who]):.{digits}f}" for row in found)
        for who in ("thesis", "optimus", "coach")
    ]
    assert f"| {line} | " + " | ".join(f"{value} %" for value in said) + " |" in readme


def test_the_static_choices_took_as_long_as_they_did(readme):
    runs = rows("static/runs.csv")
    cases: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        choices = cases.setdefault((run["job"], run["network"]), {})
        choices.setdefault(run["policy"], []).append(float(run["completion_seconds"]))
    of_best, of_median = {}, {}
    for case, choices in cases.items():
        fixed = [median(seconds) for policy, seconds in choices.items() if "static" in policy]
        of_best[case] = f"{median(choices['coach']) / min(fixed):.2f}"
        of_median[case] = f"{median(choices['coach']) / median(fixed):.2f}"
    jobs = ("lenet", "mlp", "resnet18")
    assert len(cases) == 7
    words = "best one LeNet takes {}, a perceptron {} and ResNet-18 {} times as long"
    assert words.format(*(of_best[job, "loopback"] for job in jobs)) in readme
    slow = "behind links of 2 Gbit/s {}, {} and {} times"
    assert slow.format(*(of_best[job, "2gbit"] for job in jobs)) in readme
    assert f"of 1 Gbit/s the perceptron {of_best['mlp', '1gbit']} times." in readme
    slower = [case for case in cases if float(of_median[case]) >= 1.0]
    assert slower == [("mlp", "2gbit")]
    behind = [of_median["mlp", network] for network in ("2gbit", "1gbit")]
    words = "behind 2 Gbit/s, takes {} times as long; behind 1 Gbit/s {}"
    assert f"six of the seven are faster (the perceptron, {words.format(*behind)})" in readme
    statics = [
        seconds for choices in cases.values() for policy, seconds in choices.items() if "static" in policy
    ]
    moods = max(max(seconds) / min(seconds) for seconds in statics)
    assert f"One static choice took up to {moods:.2f} times as long in one run as in another" in readme
    for (_, network), choices in cases.items():
        assert {len(runs) for runs in choices.values()} == {4 if network == "loopback" else 3}
    assert "medians of three interleaved runs, four without links" in readme
    probing = [
        median(
            float(run["probing_share"])
            for run in runs
            if (run["job"], run["network"]) == case and run["policy"] == "coach"
        )
        for case in cases
    ]
    assert f"{100 * min(probing):.1f} to {100 * max(probing):.1f} %" in readme
    tight = [run for run in runs if run["budget"]]
    assert {run["state"] for run in tight} == {"Succeeded"} and len(tight) == 24
    spent = max(float(run["cost"]) / float(run["budget"]) for run in tight)
    reached = f"all {len(tight)} runs reach their target, and none spends more than {100 * spent:.0f} % of it"
    assert reached in readme
    within = []
    for case, choices in cases.items():
        mine = [run for run in tight if (run["job"], run["network"]) == case]
        budget = median(float(run["budget"]) for run in mine)
        costs: dict[str, list[float]] = {}
        for run in runs:
            if (run["job"], run["network"]) == case and "static" in run["policy"]:
                costs.setdefault(run["policy"], []).append(float(run["cost"]))
        best = min(median(choices[policy]) for policy, cost in costs.items() if median(cost) <= budget)
        within.append(median(float(run["completion_seconds"]) for run in mine) / best)
    assert f"they take {min(within):.2f} to {max(within):.2f} times as long" in readme


def test_servers_and_three_jobs_are_as_measured(readme):
    usual = {}
    for run in rows("bandwidth/runs.csv"):
        if run["at"] == "coach":
            steps = [step for step in run["path"].split() if not step.endswith("?")]
            usual[run["job"]] = max(dict.fromkeys(steps), key=steps.count)
    assert usual == {"lenet": "2x1", "mlp": "1x2"}
    seconds: dict[str, list[float]] = {}
    for run in rows("three-jobs/runs.csv"):
        seconds.setdefault(run["policy"], []).append(float(run["mean_completion_seconds"]))
    assert {len(runs) for runs in seconds.values()} == {3}
    means = {policy: fmean(runs) for policy, runs in seconds.items()}
    best = min(means[f"{w}x{s}"] for w in (1, 2) for s in (1, 2))
    assert means["coach"] < best < means["fifo"]
    said = (
        f"end after {means['coach']:.1f} s on the mean, {means['coach:mean-completion']:.1f} s with "
        f"`coach:mean-completion`, {means['fifo']:.1f} s one after the other; under the best static choice for all "
        f"three, after {best:.1f} s"
    )
    assert said in readme


def test_the_kills_are_as_many_as_were_lived(readme):
    lives = rows("chaos/lives.csv")
    struck = [life for life in lives if life["struck"] or life["lost"]]
    last = next(n for n, life in enumerate(reversed(struck)) if life["lost"])
    assert f": {len(struck):,} lives of real jobs" in readme
    assert f"none of the last {last:,}" in readme
    simulated = dict(re.findall(r"\| ([\w ]+?) *\| (\d+) *\|", (RESULTS / "lives" / "lives.md").read_text()))
    assert simulated["overshoots"] == "0"
    assert f"Of {int(simulated['lives']):,} simulated lives" in readme


def test_the_papers_numbers_are_inside_our_range_as_often_as_the_tables_say(readme):
    inside = [
        line.split("|")[6].strip()
        for table in ("coach-table-2", "coach-table-3")
        for line in (RESULTS / "experiments" / table / "comparison.md").read_text().splitlines()
        if re.match(r"\| (\d|Table)", line)
    ]
    assert f"in {inside.count('yes')} of {len(inside)} rows" in readme


def test_the_papers_numbers_are_counted_as_in_the_summary(readme):
    every = rows("experiments/summary.csv")
    judged = [row for row in every if row["calibrated"] == "False"]
    inside, ours = (sum(row["inside"] == "True" for row in some) for some in (every, judged))
    assert (
        f"for {inside} of {len(every)} numbers, {ours} of the {len(judged)} that nothing was calibrated on"
        in readme
    )


def test_real_jobs_took_as_long_as_predicted(readme):
    table = rows("simulation/fidelity.csv")
    plain, paced = ([abs(float(row[error])) for row in table] for error in ("error", "paced_error"))
    near = sum(error <= 0.05 for error in plain)
    said = f"within {math.ceil(100 * max(paced))} % of what was predicted at the machine's pace"
    assert said in readme and f"{NUMBERS[len(table)]} real jobs" in readme
    assert f"within {math.ceil(100 * max(plain))} %, {NUMBERS[near]} of them within 5 %" in readme
    alone: dict[str, list[float]] = {}
    for row in table:
        if row["jobs_at_once"] == "1":
            alone.setdefault(row["job"], []).append(float(row["seconds"]))
    differ = max(max(seconds) / min(seconds) for seconds in alone.values()) - 1
    assert f"two runs of one job differ by {round(100 * differ)} %" in readme


def test_the_scheduler_is_as_fast_as_measured(readme):
    table = (RESULTS / "scheduler" / "README.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    ours = [row for row in cells if len(row) == 14 and row[3] == "coach"]
    assert {(row[0], row[1]) for row in ours} == {(n, g) for n in ("1000", "5000") for g in ("4", "100")}
    for column, words in ((5, "times the stock scheduler's"), (6, "times coscheduling's")):
        ratios = [float(row[column]) for row in ours]
        assert f"{min(ratios):.2f} to {max(ratios):.2f} {words}" in readme
    assert {row[9] for row in ours} == {"2.00"} and "2.00 API writes a pod" in readme
    verdicts = [float(row[3]) for row in cells if len(row) == 7 and row[2] == "coach"]
    assert len(verdicts) == 4 and max(verdicts) < 0.06 and "told so within 0.06 s" in readme


def test_what_docs_say_of_reservations_stands_in_their_table():
    said = " ".join((ROOT / "docs" / "estimation.md").read_text().split())
    real = next(
        [cell.strip() for cell in line.split("|")]
        for line in (RESULTS / "reservations" / "reservations.md").read_text().splitlines()
        if line.startswith("| benchmarks.training.static_baselines") and "when it would hang " in line
    )
    cut, quantile, held = real[4], real[5], float(real[9])
    assert cut == "0.00%" and float(quantile.rstrip("%")) >= 99.9
    assert "with 95 % confidence at least the 99.9 % one of full epochs" in said
    assert f"none was cut and {held:.0f} times their cost was held" in said

# ruff: noqa: E501 - rows of Markdown tables
"""The numbers of README.md and docs/project/evidence.md, from the files in results/.

    python -m benchmarks.evidence            # writes every block between its two marks
    python -m benchmarks.evidence --check    # writes nothing; exit code 1 and one line for each page that drifted

A block is a function here. Text outside the marks holds no measured number; the tables are in results/.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md", ROOT / "docs/project/evidence.md")
WRITTEN = "written by python -m benchmarks.evidence"
BLOCKS: dict[str, Callable[[], str]] = {}
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    """The rows of a CSV file."""
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def table(name: str, number: int = 0) -> list[Row]:
    """The rows of a Markdown file's table `number`."""
    tables: list[list[list[str]]] = [[]]
    for line in (RESULTS / name).read_text().splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif tables[-1]:
            tables.append([])
    head, _, *body = tables[number]
    return [dict(zip(head, cells, strict=False)) for cells in body]


def found(name: str, pattern: str) -> str:
    """What the pattern's group is in a file."""
    return re.findall(pattern, (RESULTS / name).read_text())[0]


def grouped(some: Iterable[Row], by: str, value: str) -> dict[str, list[float]]:
    """The numbers in column `value` for each value of column `by`."""
    groups: dict[str, list[float]] = {}
    for row in some:
        groups.setdefault(row[by], []).append(float(row[value]))
    return groups


def spread(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the largest, formatted."""
    ordered = [format(value, form) for value in sorted(values)]
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


# -- training to a target -------------------------------------------------------------------------------------------


def repeats() -> str:
    """How long Coach's runs of the demo took."""
    runs = grouped(rows("one-machine/static-grid.csv"), "policy", "completion_seconds")
    return spread(runs["coach"], ".0f")


def tight() -> tuple[int, int, float]:
    """Runs with 1.2 times the cheapest's money: how many, how many reached the target, the largest per cent spent."""
    some = [row for row in rows("static/runs.csv") if row["budget"]]
    spent = max(100 * float(row["cost"]) / float(row["budget"]) for row in some)
    return len(some), sum(row["state"] == "Succeeded" for row in some), spent


# -- money and faults -----------------------------------------------------------------------------------------------


def kills() -> tuple[int, int, int]:
    """Random kills of real jobs: how many, how many were not recovered correctly, how many since the last such."""
    hit = [row for row in rows("chaos/runs.csv") if row["struck"] or row["lost"]]
    last = next(n for n, row in enumerate(reversed(hit)) if row["lost"])
    return len(hit), sum(bool(row["lost"]) for row in hit), last


def simulated() -> dict[str, int]:
    """Counts of the simulated histories with faults."""
    return {row["what"]: int(row["count"]) for row in table("fault-runs/fault-runs.md")}


# -- predictions ----------------------------------------------------------------------------------------------------


def estimate(name: str, subject: str, measure: str, digits: int = 1) -> list[str]:
    """The thesis's, Optimus's and Coach's error, per cent."""
    for row in rows(f"estimators/{name}.csv"):
        if (row["subject"], row["measure"]) == (subject, measure):
            return [f"{100 * float(row[who]):.{digits}f} %" for who in ("thesis", "optimus", "coach")]
    raise KeyError(subject, measure)


def fidelity() -> dict[str, str]:
    """How well `coach simulate` predicted real runs."""
    runs = rows("simulation/fidelity.csv")
    plain, corrected, itself = (
        [abs(100 * float(row[key])) for row in runs] for key in ("error", "paced_error", "replay_error")
    )
    alone = grouped([row for row in runs if row["jobs_at_once"] == "1"], "job", "seconds").values()
    return {
        "jobs": f"{len(runs)}",
        "near": f"{sum(error <= 5 for error in plain)}",
        "worst": f"{max(plain):.1f}",
        "corrected": f"{max(corrected):.1f}",
        "itself": f"{max(itself):.1f}",
        "apart": f"{100 * max(max(seconds) / min(seconds) - 1 for seconds in alone):.0f}",
    }


# -- scheduling and speed -------------------------------------------------------------------------------------------


def kube_scheduler() -> tuple[str, str, list[Row]]:
    """Pods a second against the stock scheduler and coscheduling; the rows of gangs that cannot start."""
    ours = [row for row in table("scheduler/README.md") if row["scheduler"] == "coach"]
    stock, coscheduling = (spread(float(row[key]) for row in ours) for key in ("x stock", "x coscheduling"))
    return (
        stock,
        coscheduling,
        [row for row in table("scheduler/README.md", 1) if row["scheduler"] == "coach"],
    )


# -- summaries ------------------------------------------------------------------------------------------------------


def grid() -> list[Row]:
    """The demo: Coach's row, then the fixed choices' from the fastest on."""
    coach, *fixed = table("one-machine/static-grid.md")
    return [coach, *sorted(fixed, key=lambda row: float(row["completion_seconds"]))]


def ratios(column: str) -> str:
    """The least and the largest of a column of all models and networks."""
    return spread(float(row[column].rstrip("x")) for row in table("static/summary.md"))


def ended_for_curve() -> Row:
    """Jobs ended for their curve that would reach their target."""
    return next(row for row in table("early-ends/early-ends.md") if row["curves"] == "TaskSet, not fitted on")


def quotes() -> str:
    """Ten sentences, each with what its number is compared with."""
    coach, best, *_, worst = (f"{float(row['completion_seconds']):.0f} s" for row in grid())
    count, reached, spent = tight()
    hit, wrong, last = kills()
    sure, histories, ended = fidelity(), simulated(), ended_for_curve()
    thesis_error, optimus_error, error = estimate("speed", "mean", "speed error, 8 chosen")
    share = found("one-machine/overhead.md", r"included: ([\d.]+)%")
    stock, coscheduling, _ = kube_scheduler()
    speeds = table("pytorch/speed.md")
    alone, two = (spread(float(row[head]) for row in speeds) for head in ("ratio (goal: 0.95)", "ratio (goal: 0.9)"))
    return f"""\
1. Coach trained LeNet to a loss of 0.13 in {coach} (three runs: {repeats()} s); the best fixed choice took {best}, the worst {worst}.
2. Three models, with and without slow links, took {ratios("against best")} times as long as with the best fixed choice, found by trying all,
   and {ratios("against median")} times as long as with the median one.
3. With a budget of 1.2 times the cheapest fixed choice's cost {reached} of {count} runs reached their target; none spent more than {spent:.0f} % of it.
4. In {histories["histories"]:,} simulated histories with faults {histories["overshoots"]} of {histories["with a budget"]:,} jobs with a budget exceeded it.
5. One process was killed or paused in each of {hit:,} real jobs: {wrong} did not recover correctly, and none of the last {last:,}.
6. Jobs ended for their curve that would reach their target: {ended["for 200 epochs"]}; with the rule before {ended["before"]}.
7. Predicted speeds of seven models were off by {error} after eight probes, Optimus's by {optimus_error}, the thesis's by {thesis_error}.
8. `coach simulate` predicted {sure["jobs"]} real jobs within {sure["worst"]} %; two runs of the same job differ by up to {sure["apart"]} %.
9. {share} % of the demo's time was not training (goal: at most 5 %). PyTorch took {alone} times the steps a second of plain PyTorch, with two
   workers {two} times those of DistributedDataParallel.
10. The kube-scheduler with Coach's plugins bound {stock} times as many pods a second as the stock one, {coscheduling} times as many as coscheduling."""


BLOCKS["quotes"] = quotes


def elastic_demo(servers: str = "elastic") -> str:
    """Median seconds of the demo on these servers; `make demo` trains on elastic ones."""
    row = next(row for row in table("elastic/demo.md") if (row["what"], row["servers"]) == ("make demo", servers))
    return f"{float(row['mean_completion_seconds']):.0f} s"


def readme() -> str:
    """One row a claim, with what it is compared with; the unfavourable rows too."""
    coach, *fixed = grid()

    def short(row: Row) -> str:
        return f"{float(row['completion_seconds']):.0f} s, {float(row['cost']):.4f} USD"

    count, reached, _ = tight()
    hit, wrong, last = kills()
    sure, histories = fidelity(), simulated()
    small = [
        row["reached calibrated"]
        for row in rows("estimators/money-rule.csv")
        if row["experiment"] == "coach-budget" and row["budget"] == "1.2" and "measured" in row["case"]
    ]
    rivals = {row["budget"]: row for row in table("experiments/rival-budgets/comparison.md")}
    after, coach_row = rivals["paid after the fact (MLflow), speeds known"], rivals["Coach"]
    over, jobs = coach_row["jobs over it"].split()[0], int(coach_row["jobs over it"].split()[-1])
    regret = {row["policy"]: row for row in table("search/search.md")}
    on_spot = {row["policy"]: row["52 h"].split()[0] for row in table("spot.md")}
    physical = [row for row in table("experiments/shockwave-physical/comparison.md") if row["tolerance"] == "5 %"]
    return f"""\
| measured | Coach | compared with |
| --- | --- | --- |
| LeNet to a loss of 0.13 on ps-lite, three runs | {repeats()} s, median {short(coach)} | best fixed {short(fixed[0])}; worst {short(fixed[-1])} |
| `make demo`, elastic servers | {elastic_demo()} | ps-lite, same day: {elastic_demo("ps-lite")} |
| three models, time to the target | {ratios("against best")} times; {ratios("against median")} times | best fixed; median fixed |
| budget of 1.2 times the cheapest cost, real runs | {reached} of {count} reach the target; {ratios("against best within it")} times as long | best fixed within that budget |
| the same, simulated on measured curves | {small.count("0")} of {len(small)} **miss** the target | planned: 5 % |
| {histories["histories"]:,} simulated histories with faults | {histories["overshoots"]} budgets exceeded | {histories["with a budget"]:,} jobs |
| {hit:,} real jobs, one process killed or paused | {wrong} not recovered correctly, 0 of the last {last:,} | the same job undisturbed |
| {jobs:,} simulated jobs | {over} over budget; {coach_row["of the oracle's"]} of reachable targets | paid afterwards: {after["jobs over it"].split()[0]}; {after["of the oracle's"]} |
| search: distance from the best value | {regret["freeze-thaw"]["256 epochs"]} % after 256 epochs | Hyperband after 512: {regret["Optuna's Hyperband"]["512 epochs"]} % |
| 48 h on spot machines by 52 h, simulated | {on_spot["Coach, 1 worker"]} of the on-demand cost; up to four workers {on_spot["Coach, 1 to 4 workers"]} | Uniform Progress, one worker: **{on_spot["Uniform Progress, 1 worker"]}** |
| Shockwave's 120 jobs on 32 GPUs, simulated | {sum(row["within"] == "yes" for row in physical)} of {len(physical)} durations within 5 % | real runs |
| `coach simulate`, {sure["jobs"]} jobs | within {sure["worst"]} %, {sure["near"]} within 5 % | the same job twice: {sure["apart"]} % apart |"""


BLOCKS["readme"] = readme


def page(text: str) -> str:
    """`text` with every block written anew. Raises KeyError for a block that there is no function for."""
    marks = re.compile(rf"(<!-- (\S+): {WRITTEN} -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
    return marks.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", text)


def main(*options: str) -> int:
    """Write the pages, or check them."""
    drifted = [path for path in PAGES if page(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")]
    for path in drifted:
        if "--check" in options:
            print(f"{path.name} differs from results/: run python -m benchmarks.evidence", file=sys.stderr)
        else:
            path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    return int(bool(drifted)) if "--check" in options else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

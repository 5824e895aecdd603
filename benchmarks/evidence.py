# ruff: noqa: E501 - rows of Markdown tables
"""The numbers of README.md and docs/evidence.md, from the files in results/.

    python -m benchmarks.evidence            # writes every block between its two marks
    python -m benchmarks.evidence --check    # writes nothing; exit code 1 and one line for each page that drifted

A block is a function here: a frame (command, date, machine, files) and a table. Text outside the marks holds no
measured number. The date is that of the measurement: change it together with the files it belongs to.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "evidence.md")
WRITTEN = "written by python -m benchmarks.evidence"
TWO_CORES = "2 cores, x86_64"
PLACES = {"local": "processes", "kubernetes": "pods on three nodes"}
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


def markdown(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in [head, ["---"] * len(head), *body])


def columns(some: Iterable[Row], *named: str) -> str:
    """A table of columns, each `name` or `name -> heading`."""
    pairs = [(name, heading or name) for name, _, heading in (text.partition(" -> ") for text in named)]
    return markdown([heading for _, heading in pairs], [[row[name] for name, _ in pairs] for row in some])


def block(command: str, measured: str, machine: str, *files: str) -> Callable[[Callable[[], str]], None]:
    """Registers the function as the block of its name, its frame above its table."""

    def register(function: Callable[[], str]) -> None:
        links = ", ".join(f"[{file}](../results/{file})" for file in files)
        frame = f"`{command}`, measured on {measured}, {machine}; files: {links}."
        BLOCKS[function.__name__.replace("_", "-")] = lambda: f"{frame}\n\n{function()}"

    return register


# -- training to a target -------------------------------------------------------------------------------------------


def repeats() -> str:
    """How long Coach's runs of the demo took."""
    runs = grouped(rows("one-machine/static-grid.csv"), "policy", "completion_seconds")
    return spread(runs["coach"], ".0f")


@block("make bench", "2026-11-23", TWO_CORES, "one-machine/static-grid.md")
def demo() -> str:
    """LeNet to a loss of 0.13."""
    grid = table("one-machine/static-grid.md")
    shown = columns(
        grid, "policy", "runs", "epochs -> full epochs", "completion_seconds -> completion, s", "cost -> cost, USD",
        "against best static -> against best fixed choice",
    )  # fmt: skip
    probing = 100 * float(grid[0]["probing_share"])
    return f"{shown}\n\nMedians. Coach's runs took {repeats()} s; probes were {probing:.1f} % of the time."


def thesis() -> tuple[str, str]:
    """How many times as long the thesis's way takes, and its seconds."""
    seconds = float(table("one-machine/thesis-way.md")[1]["completion_seconds"])
    return found("one-machine/thesis-way.md", r"Coach is ([\d.]+)x faster"), f"{seconds:.0f}"


@block("make bench", "2026-11-23", TWO_CORES, "one-machine/overhead.md", "one-machine/thesis-way.md")
def overhead() -> str:
    """Seconds outside training."""
    share = found("one-machine/overhead.md", r"included: ([\d.]+)%")
    changed, unchanged = table("one-machine/overhead.md")
    times, seconds = thesis()
    return f"""\
| what | result | compared with |
| --- | --- | --- |
| outside training, share of the completion time | {share} % | goal: at most 5 % |
| before an epoch with the same allocation, median | {unchanged["outside_seconds"]} s | goal: {unchanged["goal"]} |
| before an epoch with another allocation, median | {changed["outside_seconds"]} s | goal: {changed["goal"]} |
| the same epochs in the thesis's way | {seconds} s | {times} times as long as with Coach |"""


def tight() -> tuple[int, int, float]:
    """Runs with 1.2 times the cheapest's money: how many, how many reached the target, the largest per cent spent."""
    some = [row for row in rows("static/runs.csv") if row["budget"]]
    spent = max(100 * float(row["cost"]) / float(row["budget"]) for row in some)
    return len(some), sum(row["state"] == "Succeeded" for row in some), spent


@block(
    "python -m benchmarks.training.static_baselines",
    "2026-11-23",
    TWO_CORES,
    "static/summary.md",
    "static/runs.csv",
)
def static_choices() -> str:
    """Coach against all fixed choices."""
    shown = columns(
        table("static/summary.md"), "job", "network", "runs", "best static -> best fixed choice", "seconds -> its s",
        "Coach -> Coach, s", "against best", "against median", "probing",
        "against best within it -> budget of 1.2 x the cheapest's cost: against the best within it", "spent of it",
    )  # fmt: skip
    runs: dict[str, list[float]] = {}
    for run in rows("static/runs.csv"):
        if "static" in run["policy"]:
            case = f"{run['job']} {run['network']} {run['policy']}"
            runs.setdefault(case, []).append(float(run["completion_seconds"]))
    same = max(max(seconds) / min(seconds) for seconds in runs.values())
    count, reached, spent = tight()
    return f"""\
{shown}

Medians. One fixed choice took up to {same:.2f} times as long in one run as in another. With the budget {reached} of {count} runs
reached the target; the most that one of them spent was {spent:.0f} % of it."""


@block(
    "python -m benchmarks.training.bandwidth",
    "2026-11-22",
    f"{TWO_CORES}, links of 2 Gbit/s",
    "bandwidth/bandwidth.md",
)
def links() -> str:
    """Workers and servers behind slow links."""
    return columns(
        table("bandwidth/bandwidth.md"), "job", "most epochs of Coach -> Coach's choice, workers x servers",
        "fastest measured", "its speed against the fastest -> the choice's speed against the fastest",
    )  # fmt: skip


def together() -> dict[str, float]:
    """Mean completion seconds of three jobs at once, by policy, and of the best fixed choice."""
    runs = grouped(rows("three-jobs/runs.csv"), "policy", "mean_completion_seconds")
    means = {policy: fmean(seconds) for policy, seconds in runs.items()}
    return means | {"best": min(value for policy, value in means.items() if policy[0].isdigit())}


@block("python -m benchmarks.training.three_jobs", "2026-11-23", TWO_CORES, "three-jobs/three-jobs.md")
def three_jobs() -> str:
    """Three jobs at once."""
    return columns(
        table("three-jobs/three-jobs.md"), "policy -> policy or fixed choice", "runs",
        "mean_completion_seconds -> mean completion, s", "makespan_seconds -> makespan, s",
        "against best static -> against best fixed choice",
    )  # fmt: skip


# -- money and faults -----------------------------------------------------------------------------------------------


@block("python -m benchmarks.training.reservations", "2026-11-23", TWO_CORES, "reservations/reservations.md")
def reservations() -> str:
    """How often a reservation cuts an epoch."""
    return columns(
        table("reservations/reservations.md"), "epochs of", "deadline", "epochs", "cut by it",
        "quantile, 95 % sure -> its quantile, with 95 % confidence", "reserved / paid, median",
    )  # fmt: skip


def kills() -> tuple[int, int, int]:
    """Random kills of real jobs: how many, how many were not recovered correctly, how many since the last such."""
    hit = [row for row in rows("chaos/runs.csv") if row["struck"] or row["lost"]]
    last = next(n for n, row in enumerate(reversed(hit)) if row["lost"])
    return len(hit), sum(bool(row["lost"]) for row in hit), last


@block("make chaos", "2026-11-22", TWO_CORES, "chaos/chaos.md", "chaos/rounds.md")
def faults() -> str:
    """Random kills."""
    shown = columns(
        table("chaos/chaos.md"), "victim -> process", "SIGKILL -> killed", "SIGSTOP -> paused", "epochs repeated",
        "median seconds -> median s of the job", "losses -> not recovered correctly",
    )  # fmt: skip
    return f"{shown}\n\nThe last {kills()[2]:,} runs had no failure."


def simulated() -> dict[str, int]:
    """Counts of the simulated histories with faults."""
    return {row["what"]: int(row["count"]) for row in table("fault-runs/fault-runs.md")}


@block("python -m benchmarks.decisions.fault_runs 10000", "2026-11-22", TWO_CORES, "fault-runs/fault-runs.md")
def simulated_faults() -> str:
    """Simulated histories."""
    names = {
        "with a budget": "jobs with a budget",
        "overshoots": "budgets exceeded",
        "broken rules": "rules broken",
    }
    keys = ("histories", "jobs", "with a budget", "epochs", "failed attempts", "overshoots", "broken rules")
    counts = simulated()
    return markdown(("what", "count"), [(names.get(key, key), f"{counts[key]:,}") for key in keys])


# -- predictions ----------------------------------------------------------------------------------------------------


def estimate(name: str, subject: str, measure: str, digits: int = 1) -> list[str]:
    """The thesis's, Optimus's and Coach's error, per cent."""
    for row in rows(f"estimators/{name}.csv"):
        if (row["subject"], row["measure"]) == (subject, measure):
            return [f"{100 * float(row[who]):.{digits}f} %" for who in ("thesis", "optimus", "coach")]
    raise KeyError(subject, measure)


@block(
    "python -m benchmarks.decisions.estimators",
    "2026-11-25",
    TWO_CORES,
    "estimators/summary.md",
)
def estimators() -> str:
    """Errors of predictions."""
    body = [
        (f"{words}, {points}", *estimate("speed", "mean", f"{measure}, {points}"))
        for measure, words in (
            ("speed error", "predicted speed, error"),
            ("speed lost", "predicted best, speed lost"),
        )
        for points in ("4 mini-epochs", "8 random", "8 chosen")
    ]
    for name, words in (("Cifar10", "ResNet-18 on CIFAR-10"), ("LeNet", "LeNet")):
        for kind in ("by the rule", "with probes", "crossing"):
            body.append(
                (
                    f"last epoch half-way, {words}, {kind}",
                    *estimate("last-epoch", f"{name}, {kind}", "error at 50%"),
                )
            )
    return markdown(("what", "thesis", "Optimus", "Coach"), body)


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


@block(
    "coach experiment coach-best",
    "2026-11-25",
    "simulated: independent of the machine",
    "experiments/coach-best/comparison.md",
)
def best_simulated() -> str:
    """Jobs without a target against all static choices for the same money."""
    return columns(
        table("experiments/coach-best/comparison.md"), "budget, cheapest epochs", "cases",
        "loss against the median static choice: mean, %; not worse", "against the best: mean, %; 95th percentile",
        "budget spent, %", "overshoots", "foretold", "inside the 80 % interval, %",
        "its width, % of the loss, median",
    )  # fmt: skip


@block("python -m benchmarks.training.best_model", "2026-11-25", TWO_CORES, "best-model/runs.md")
def best_live() -> str:
    """Jobs without a target on this machine, foretold and reached."""
    return columns(
        table("best-model/runs.md"), "job", "budget, USD", "spent", "epochs foretold", "trained", "seconds foretold",
        "taken", "loss foretold (80 %)", "last loss", "inside", "best loss", "ended",
    )  # fmt: skip


@block(
    "coach experiment rival-budgets",
    "2026-11-27",
    "simulated: independent of the machine",
    "experiments/rival-budgets/comparison.md",
)
def rival_budgets() -> str:
    """The same jobs under the budgets of others."""
    return columns(
        table("experiments/rival-budgets/comparison.md"), "budget", "jobs over it", "overshoot, mean", "worst",
        "targets reached", "within the budget", "of the oracle's", "money unused", "time, the oracle's",
    )  # fmt: skip


@block(
    "python -m benchmarks.decisions.spot FOLDER --several FOLDER",
    "2026-11-28",
    "simulated on published traces: independent of the machine",
    "spot.md",
)
def spot() -> str:
    """Spot machines under a deadline and a budget."""
    return columns(table("spot.md"), "policy", "52 h", "60 h", "72 h", "92 h")


@block(
    "python -m benchmarks.search",
    "2026-11-27",
    "replayed on known curves: independent of the machine",
    "search/search.md",
)
def search() -> str:
    """Regret by money of searches."""
    return columns(table("search/search.md"), "policy", "64 epochs", "128 epochs", "256 epochs", "512 epochs")


@block("make chaos SEARCH=1", "2026-11-28", TWO_CORES, "search/chaos.md")
def search_faults() -> str:
    """Searches whose handler is killed."""
    return columns(table("search/chaos.md"), "SIGKILL to", "runs", "median seconds", "losses")


@block(
    "python -m benchmarks.curves",
    "2026-11-28",
    "public curves: independent of the machine",
    "curves/taskset.md",
)
def taskset() -> str:
    """The last value of TaskSet's curves, predicted from their beginnings."""
    return columns(
        table("curves/taskset.md"), "after", "method", "error", "bias", "inside", "inside, worst task", "score"
    )


@block(
    "python -m benchmarks.knowledge",
    "2026-11-28",
    "public curves: independent of the machine",
    "curves/knowledge.md",
)
def knowledge() -> str:
    """What those predictions gain by earlier runs, the schedule, the training loss."""
    return columns(
        table("curves/knowledge.md"), "known", "after", "error", "error without", "inside", "inside without", "score",
        "score without", "score gain",
    )  # fmt: skip


@block(
    "coach experiment shockwave-physical",
    "2026-11-27",
    "simulated: independent of the machine",
    "experiments/shockwave-physical/comparison.md",
)
def shockwave() -> str:
    """Shockwave's physical runs, and the simulator with their jobs as they ran."""
    name, ours = "experiments/shockwave-physical/comparison.md", "ours (95 % of the mean)"
    return columns(table(name), "measure", "paper", ours, "difference", "within")


@block("python -m benchmarks.pytorch.speed", "2026-11-25", TWO_CORES, "pytorch/speed.md")
def pytorch() -> str:
    """Steps a second against plain PyTorch and DistributedDataParallel."""
    return columns(
        table("pytorch/speed.md"), "net", "plain, 1 process", "Coach, 1 worker", "ratio (goal: 0.95)",
        "DDP, 2 processes", "Coach, 2 workers", "ratio (goal: 0.9)",
    )  # fmt: skip


@block("python -m benchmarks.pytorch.gpu", "2026-11-26", "16 cores and one NVIDIA H200", "pytorch/gpu.md")
def gpu() -> str:
    """A GPU beside eight cores."""
    return columns(
        table("pytorch/gpu.md"), "network", "workers", "computes on", "runs", "s an epoch", "s until training", "loss", "accuracy"
    )  # fmt: skip


@block(
    "python -m benchmarks.programs.overhead`, `make chaos PROGRAM=1",
    "2026-11-27",
    TWO_CORES,
    "programs/overhead.md",
    "programs/interruptions.md",
    "programs/chaos.md",
)
def programs() -> str:
    """A program's time with Coach and without, what interruptions cost it, and kills at any instant."""
    files = ("programs/overhead.md", "programs/interruptions.md", "programs/chaos.md")
    return "\n\n".join(columns(rows, *rows[0]) for rows in map(table, files))


@block("python -m benchmarks.training.fidelity", "2026-11-22", TWO_CORES, "simulation/fidelity.md")
def simulation() -> str:
    """Predicted against real completion times."""
    errors = fidelity()
    return f"""\
| what | result | compared with |
| --- | --- | --- |
| largest error over {errors["jobs"]} jobs, each predicted from the other runs | {errors["worst"]} % | goal: 5 % |
| jobs within 5 % | {errors["near"]} of {errors["jobs"]} | goal: all |
| the same job run again on this machine | up to {errors["apart"]} % longer | its fastest run |
| largest error, corrected for the machine's speed during each run | {errors["corrected"]} % | goal: 5 % |
| largest error, each run predicted from itself | {errors["itself"]} % | what the simulator adds |"""


def papers() -> tuple[list[Row], list[Row]]:
    """What comes out of the papers' numbers, a row an experiment; the best and the worst line."""
    return table("experiments/summary.md"), table("experiments/summary.md", 1)


@block(
    "coach experiment --all",
    "2026-11-21 to 26",
    "simulated: independent of the machine",
    "experiments/summary.md",
)
def experiments() -> str:
    """The papers' numbers."""
    every, (best, worst) = papers()
    heads = list(every[0])[3:]
    body = []
    for row in every:
        name = row["experiment"].strip("*[").partition("]")[0]
        link = "all" if name.startswith("all") else f"[{name}](../results/experiments/{name}/comparison.md)"
        body.append((link, *(row[head] for head in heads)))

    def said(row: Row) -> str:
        return (
            f"{row['experiment']}, {row['measure']}: {row['paper']} in the paper, {row['ours']} here "
            f"({row['relative difference']})"
        )

    ends = f"Of the judged the best: {said(best)}. The worst: {said(worst)}."
    return markdown(("experiment", *heads), body) + f"\n\n{ends}"


@block(
    "python -m benchmarks.thesis_live local, and the same with kubernetes",
    "2026-11-26",
    f"{TWO_CORES}, which other work shared",
    "thesis/live-local.md",
    "thesis/live-kubernetes.md",
)
def thesis_live() -> str:
    """The thesis's question with real jobs."""
    body = []
    shown = (
        "case", "placement", "runs", "stand still", "half-placed, s of a job", "s until training", "s an epoch",
        "last job, s",
    )  # fmt: skip
    for place in ("local", "kubernetes"):
        for row in table(f"thesis/live-{place}.md"):
            body.append((PLACES[place], *(row[key] for key in shown)))
    return markdown(("where", *shown), body)


@block(
    "python -m benchmarks.papers_live",
    "2026-11-26",
    f"{TWO_CORES}, which other work shared",
    "papers-live/specon.md",
    "papers-live/fitgpp.md",
    "papers-live/kod2.md",
)
def papers_live() -> str:
    """The papers' policies in real processes and simulated."""
    body = []
    for name, what in (("specon", "moves"), ("fitgpp", "preemptions"), ("kod2", "resizes")):
        for row in table(f"papers-live/{name}.md"):
            trials = row.get("of trial-and-error jobs, s", "")
            body.append((
                row["policy"], row["jobs"], what, row[what], row["mean completion, s"], trials,
                row["pairs that end in the same order"], row["replayed: same actions"],
            ))  # fmt: skip
    heads = (
        "policy", "jobs", "decision", "live; simulated", "mean completion, s", "trial-and-error jobs, s",
        "pairs that end in the same order", "the recorded events replayed: same actions",
    )  # fmt: skip
    overhead = found("papers-live/specon.md", r"specon:interval=4: (.+)")
    load = spread((float(row["load before"]) for row in rows("papers-live/runs.csv")), ".0f")
    return f"{markdown(heads, body)}\n\nSpeCon: {overhead} The load average before the runs was {load}."


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


@block("make -C scheduler-plugins bench", "2026-11-21", "2 cores, AMD EPYC, 23 GiB", "scheduler/README.md")
def scheduler() -> str:
    """The kube-scheduler plugins."""
    stock, coscheduling, stuck = kube_scheduler()
    return f"""\
| what | result | compared with |
| --- | --- | --- |
| 2,000 pods on 1,000 and 5,000 nodes, gangs of 4 and 100: pods/s | {stock} times | stock kube-scheduler |
| the same | {coscheduling} times | coscheduling plugin |
| until a gang that can never start has its reason | {max(float(row["verdict s"]) for row in stuck)} s at most | goal: 1 s |
| core-seconds held for such a gang | {max(float(row["held core-seconds"]) for row in stuck)} | goal: none |"""


@block("python -m benchmarks.service.nuclio", "2026-11-25", TWO_CORES, "kubernetes/nuclio.md")
def nuclio() -> str:
    """What Nuclio costs a job, as plain pods and as functions."""
    return columns(table("kubernetes/nuclio.md"), "seconds", "as", "measured", "median", "least", "most")


@block("python -m benchmarks.decisions.packing", "2026-11-21", "independent of the machine", "packing.md")
def packing() -> str:
    """Planned gangs against pods placed one by one."""
    return columns(
        table("packing.md"), " -> 500 random gangs", "gangs placed -> share placed", "partial gangs -> share partly placed",
        "nodes -> nodes, mean", "pods beside another job -> pods on a node with another job, mean",
    )  # fmt: skip


@block(
    "python -m benchmarks.decisions.allocation (.lean, .service, .simulation)", "2026-11-21 to 23", f"{TWO_CORES} (of allocation.md not recorded)",
    *("allocation.md", "lean/lean.md", "service/service.md", "simulation/speed.md"),
)  # fmt: skip
def speed() -> str:
    """How fast decisions, handler, service and simulator are: what has a goal, and what is far from any."""
    body: list[Sequence[str]] = [
        (f"{row['case']}, {row['policy']}, one decision: {column}", row[column], "goal: 1 s")
        for row in table("allocation.md")
        if row["case"].startswith("10000") and row["policy"] == "coach"
        for column in ("seconds", "seconds, 1 % changed")
    ]
    for file, column in (("lean/lean.md", "with snapshots"), ("service/service.md", "measured")):
        kept = [row for row in table(file) if row["goal"] or "decided" in row["what"]]
        body += [(row["what"], row[column], f"goal: {row['goal'] or 'not set'}") for row in kept]
    for row in table("simulation/speed.md"):
        if "target" in row["what"]:
            body.append((row["what"].strip("*"), f"{row['wall s'].strip('*')} s", "its target"))
        elif "M/M/1" in row["what"]:
            body.append(
                (
                    f"{row['what']}, {row['jobs']} jobs",
                    f"{row['events/s']} events/s",
                    "SimPy has neither nodes nor a policy",
                )
            )
    return markdown(("what", "result", "compared with"), body)


@block("python -m benchmarks.service.page", "2026-11-25", TWO_CORES, "web/page.md")
def page_in_a_browser() -> str:
    """What the page costs, and how soon it shows what."""
    body = [(row["what"], row["measured"], f"goal: {row['goal'] or 'not set'}") for row in table("web/page.md")]
    return markdown(("what", "result", "compared with"), body)


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
    simulated_budget = next(
        row
        for row in table("experiments/coach-budget/comparison.md")
        if (row["curve"], row["budget"]) == ("measured", "1.2")
    )
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
| the same, simulated on measured curves | {simulated_budget["missed"]} of {simulated_budget["cases"]} **miss** the target | planned: 5 % |
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

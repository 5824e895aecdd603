"""Runs all tests part by part, or `make test` several times, and writes what came out as a table; resumable.

    python scripts/test_record.py all              # results/all-tests.md
    python scripts/test_record.py soak 10          # results/test-soak.md

A part, or a run, that has ended is never run again for the same commit, whether it passed or not: no result is tried
until it is a good one. What was stopped is run again. Output is in .cache/test-record/COMMIT.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What is written here; a commit of nothing else is tested as the one before it.
TABLES = (":!results/all-tests.md", ":!results/test-soak.md")
#: The last words of pytest, such as "3 failed, 12 passed in 4.20s", and a test of Go's.
PYTEST = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
GO = re.compile(r"^\s*(?:\w+ \| )?\s*--- (PASS|FAIL|SKIP): ", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """One part or run that has ended."""

    name: str
    date: str
    code: int
    tests: int
    failures: int
    skipped: int
    wall_seconds: float
    cpu_seconds: float


def parts() -> dict[str, list[str]]:
    """Each part's command: a folder of tests, in all tiers, or a target of the Makefile."""
    pytest = [
        ".venv/bin/python",
        "-m",
        "pytest",
        "-q",
        "-m",
        "not root and not kubernetes and not pytorch and not web",
    ]
    folders = sorted(path for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py")))
    folders = [path for path in folders if path.name not in ("kubernetes", "slurm", "web")]
    found = {"tests": [*pytest, *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").glob("test_*.py"))]}
    found |= {f"tests/{path.name}": [*pytest, f"tests/{path.name}"] for path in folders}
    for target in (
        "test-root",
        "test-slurm ALL=1",
        "test-web ALL=1",
        "test-pytorch ALL=1",
        "test-trackers",
        "test-kubernetes ALL=1",
        "test-versions",
        "test-go",
        "test-go-race",
        "check",
        "fuzz SECONDS=300",
    ):
        found[f"make {target}"] = ["make", "--no-print-directory", *target.split()]
    return found


def counted(output: str) -> tuple[int, int, int]:
    """Tests, failures and skipped ones, from the output of pytest and of `go test -v`."""
    go = GO.findall(output)
    failed, skipped = go.count("FAIL"), go.count("SKIP")
    passed = go.count("PASS")
    for line in re.findall(r"^.*\b\d+ \w+.* in [\d.]+s.*$", output, re.MULTILINE):
        for number, word in PYTEST.findall(line):
            passed += int(number) * (word == "passed")
            failed += int(number) * (word in ("failed", "error", "errors"))
            skipped += int(number) * (word == "skipped")
    return passed + failed + skipped, failed, skipped


def run(name: str, command: list[str], log: Path) -> Result:
    """Run `command`; what it says goes to the terminal and to `log`."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "GOFLAGS": "-v"}
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    tests, failures, skipped = counted(log.read_text())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Result(name, date, process.returncode, tests, failures, skipped, round(wall, 1), round(cpu, 1))


def once(folder: Path, name: str, work: Callable[[Path], Result]) -> Result:
    """The result of `work`, from `folder` if it has ended before."""
    place = folder / f"{re.sub(r'[^A-Za-z0-9.=-]+', '-', name)}.json"
    if place.exists():
        return Result(**json.loads(place.read_text()))
    result = work(place.with_suffix(".log"))
    place.write_text(json.dumps(asdict(result)))
    return result


def commit() -> str:
    """The commit that is tested: the last one, but for the tables. Changes in none, but to results/, are an error."""
    git = ("git", "-C", str(ROOT))
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", ".", ":!results"], capture_output=True, text=True, check=True
    ).stdout
    if changed:
        sys.exit(f"commit first, so that the table can say what was tested:\n{changed}")
    log = [*git, "log", "-1", "--format=%h", "--abbrev=12", "--", ".", *TABLES]
    return subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Each core has something else to do."""
    with contextlib.ExitStack() as ending:
        for core in os.sched_getaffinity(0):
            process = ending.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            ending.callback(process.kill)
            os.sched_setaffinity(process.pid, {core})
        yield


def table(title: str, said: str, first: str, results: list[Result]) -> str:
    """Markdown of `results`, with their sum."""
    lines = [f"# {title}", "", said, ""]
    lines += [f"| {first} | ended (UTC) | tests | failures | skipped | exit code | wall s | CPU s |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    numbers = ("tests", "failures", "skipped", "code", "wall_seconds", "cpu_seconds")
    for one in results:
        lines += [f"| {one.name} | {one.date} | {' | '.join(f'{getattr(one, n):g}' for n in numbers)} |"]
    total = {n: sum(getattr(one, n) for one in results) for n in numbers}
    bad = sum(one.code != 0 for one in results)
    total["code"] = f"{bad} not 0"
    shown = [f"{total[n]:,.0f}" if n != "code" else total[n] for n in numbers]
    lines += [f"| **all** | | {' | '.join(shown)} |", ""]
    return "\n".join(lines)


def main(what: str, runs: str = "10") -> int:
    """Run what has not ended yet; 1 where anything failed."""
    tested = commit()
    folder = ROOT / ".cache/test-record" / tested / what
    folder.mkdir(parents=True, exist_ok=True)
    if what == "all":
        results = [once(folder, name, lambda log, n=name, c=c: run(n, c, log)) for name, c in parts().items()]
        title, first, place = "All tests", "part", "all-tests"
        said = f"`make all-tests` at commit {tested}, part by part on {os.cpu_count()} cores."
    else:

        def soaked(log: Path, name: str) -> Result:
            with busy():
                return run(name, ["make", "--no-print-directory", "test"], log)

        recall()
        names = [f"{i + 1}" for i in range(int(runs))]
        results = [once(folder, name, lambda log, n=name: soaked(log, n)) for name in names]
        title, first, place = "Runs of `make test` with a busy loop on each core", "commit, run", "test-soak"
        said = f"`make soak` on {os.cpu_count()} cores: every run that ended, whatever came out."
    text = table(title, said, first, results if what == "all" else soaks())
    (ROOT / "results" / f"{place}.md").write_text(text)
    print(f"\n{text}")
    return int(any(one.code for one in results))


def recall() -> None:
    """Take over the runs that the committed table has: a clone, on any machine, goes on after them."""
    file = ROOT / "results/test-soak.md"
    for line in file.read_text().splitlines() if file.exists() else ():
        if row := re.fullmatch(r"\| ([0-9a-f]+), (\d+) \| ([-0-9: ]+) \| ([0-9.]+(?: \| [0-9.]+){5}) \|", line):
            commit, run, date, numbers = row.groups()
            tests, failures, skipped, code, wall, cpu = map(float, numbers.split(" | "))
            ended = Result(run, date, int(code), int(tests), int(failures), int(skipped), wall, cpu)
            folder = ROOT / ".cache/test-record" / commit / "soak"
            folder.mkdir(parents=True, exist_ok=True)
            once(folder, run, lambda _log, ended=ended: ended)  # type: ignore[misc]


def soaks() -> list[Result]:
    """All runs of `make soak` that have ended, of any commit, the oldest first."""
    found = [
        replace(Result(**json.loads(path.read_text())), name=f"{path.parts[-3]}, {path.stem}")
        for path in (ROOT / ".cache/test-record").glob("*/soak/*.json")
    ]
    return sorted(found, key=lambda one: (one.date, one.name))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

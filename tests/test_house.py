"""The house stays as a newcomer finds it: no old name comes back, and no folder grows too long to read."""

import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import size
from tests.docs.pages import ROOT, tracked

#: Names that were replaced, and by what.
OLD = {
    "gang_pods": "desired_pods",
    "no_room": "pending_reason",
    "queue_gangs": "schedule_queue",
    "plan_needed": "plan_required",
    "add_wanted": "add_optional",
    "sees_no_way": "fit_says_unreachable",
    "least_needed": "minimum_reservation",
    "provided_epochs": "epochs_to_provide_for",
    "BookOrName": "PriceBookRef",
    "in_a_row": "consecutive_hits",
    "real_epochs": "full_epochs",
    "real_curves": "full_epoch_curves",
    "to_count_on": "conservative_value",
    "take_over": "acquire_fence",
    "early_imports": "warm_up",
    "first_request": "warm_up",
    "InterruptAsked": "SuspendRequested",
    "CancelAsked": "CancelRequested",
    "ResumeAsked": "ResumeRequested",
    "GoBack": "RollBack",
    "AT_REST": "RESUMABLE",
    "MEANING": "REASON_INFO",
    "NodesAway": "NodesUnavailable",
    "Narrator": "EventFormatter",
    "Watcher": "RunObserver",
    "Purse": "Balance",
    "SeededDice": "SeededDraws",
    "healSeconds": "resyncSeconds",
    "CoachRoom": "CoachCapacityGuard",
    r"(?:LEAST|MOST)_[A-Z]\w*": "MIN_, MAX_",
    r"coach/(?:job|role|index)": "coach.dev/job, coach.dev/role, coach.dev/index",
    r"coach\.core\.(?:scene|nodes|reducer|budget)": "coach.core.lifecycle, coach.core.money",
    r"coach\.core\.jobs\.(?:spec|parts|means|fields|units)": "coach.core.spec",
    r"coach\.core\.jobs\.(?:life|late|times|fits|patience|ending|view)": "coach.core.lifecycle",
    r"coach\.simulation\.(?:driver|floor|record|ended|belief|truth)": "coach.simulation.engine, dynamics",
    r"coach\.simulation\.(?:whatif|kept|beside|experiments?)": "coach.studies, coach_research",
    r"coach\.report\.(?:words|together|replay|simulated)": "coach.report.formatting, accounting, ...",
    r"coach\.service\.(?:also|answers|stories|joined|guard|listening|checks)": "coach.service.schemas, ...",
}
#: This file and the changelog name the old words.
MAY = {"tests/test_house.py", "CHANGELOG.md"}
TEXTS = [
    path
    for path in tracked("*.py", "*.go", "*.md", "*.yaml", "*.toml", "Makefile")
    if str(path.relative_to(ROOT)) not in MAY and not path.is_relative_to(ROOT / "results")
]


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_does_not_come_back(old: str) -> None:
    word = re.compile(rf"(?<![\w/]){old}(?!\w)")
    found = [str(path.relative_to(ROOT)) for path in TEXTS if word.search(path.read_text(encoding="utf-8"))]
    assert not found, f"write {OLD[old]}"


def test_no_folder_has_more_files_than_fit_on_a_screen() -> None:
    sizes: Counter[Path] = Counter(path.parent.relative_to(ROOT) for path in tracked("*.py", "*.go"))
    assert {str(folder): size for folder, size in sizes.items() if size > 18} == {}


def test_the_table_of_sizes_is_at_most_a_tenth_off() -> None:
    table, now = size.read(), size.sizes(size.of_now())
    assert table.keys() >= now.keys(), "run: python -m benchmarks.size"
    off = {
        name: (table[name], now[name])
        for name in now
        if abs(table[name] - now[name]) > max(100, now[name] // 10)
    }
    assert not off, "(in the table, now); run: python -m benchmarks.size"

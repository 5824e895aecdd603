"""The short ones of results/programs/public.md, run under a budget to their targets."""

from __future__ import annotations

import pytest

from benchmarks.programs.public import PROGRAMS, SCRIPTS, Program, run

SHORT = ("regression", "super_resolution", "gat")


def test_the_table_has_27_programs_of_which_none_needs_more_than_three_lines() -> None:
    assert len({program.name for program in PROGRAMS}) == 27
    changed = {program.name: program.lines_changed() for program in PROGRAMS}
    assert all(lines <= 3 for lines in changed.values()), changed
    marked = sum(path.read_text(encoding="utf-8").count("# changed") for path in SCRIPTS.glob("*.py"))
    assert sum(changed.values()) == marked, "each marked line is of a program of the table"


@pytest.mark.pytorch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", [one for one in PROGRAMS if one.function in SHORT], ids=lambda one: one.function)
def test_a_program_that_prints_as_its_authors_do_is_stopped_at_its_target(program: Program) -> None:
    row = run(program)
    assert row["came out"] == "TargetReached", row
    assert 0.0 < float(row["spent"]) <= float(row["budget"]), row


def test_a_library_that_is_missing_is_said_and_nothing_is_run() -> None:
    flax = next(program for program in PROGRAMS if program.needs == "flax")
    assert run(flax)["came out"] == "not run: no --python"

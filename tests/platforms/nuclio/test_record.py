"""The page with the last real run has every case that the stand-in is held to, and all of them passed."""

from __future__ import annotations

import ast
import re

from tests.docs.pages import ROOT
from tests.platforms.nuclio.record import PATHS, cases, recorded


def _functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {
        f"{path}::{one.name}" for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
    }


def test_the_real_run_and_the_stand_ins_have_the_same_cases() -> None:
    names = {re.sub(r"\[.*\]$", "", case.name) for case in recorded()}
    assert names == {name for path in PATHS for name in _functions_of(path)}


def test_all_of_them_passed_with_the_real_ones() -> None:
    assert {case.outcome for case in recorded()} == {"PASSED"}


def test_cases_are_read_as_pytest_prints_them() -> None:
    output = """
tests/a.py::test_one[nuclio] PASSED   [ 10%]
tests/a.py::test_one[double] PASSED   [ 20%]
tests/a.py::test_two[a b-nuclio] FAILED [ 30%]
"""
    assert cases(output) == [
        ("tests/a.py::test_one[nuclio]", "PASSED"),
        ("tests/a.py::test_two[a b-nuclio]", "FAILED"),
    ]

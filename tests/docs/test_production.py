"""The checklist for production and the audit name tests that there are."""

import ast
import re

import pytest

from tests.docs.pages import ROOT

PAGES = ("docs/reference/checklist.md", "docs/advanced/security.md", "tests/platforms/local/devices/README.md")
LINES = [row for page in PAGES for row in (ROOT / page).read_text(encoding="utf-8").splitlines()]
ROWS = [row.strip("| ").split(" | ") for row in LINES if row.startswith("| ")]
HEADS = ("check", "tries to reach", "port", "file", "message", "fault elsewhere", "---")
CHECKS = [(row[0], row[-1]) for row in ROWS if row[0] not in HEADS]


@pytest.mark.parametrize(("check", "held_by"), CHECKS, ids=lambda cell: cell[:60])
def test_a_check_is_held_by_a_test_that_is_there_or_was_not_tried(check: str, held_by: str) -> None:
    if held_by in ("*not tried*", "*by design*"):
        return
    named = re.fullmatch(r"(?:\*not run\*: )?`(tests/\S+\.py)::(test_\w+)`", held_by)
    assert named, f"{check}: not a test: {held_by}"
    tree = ast.parse((ROOT / named[1]).read_text(encoding="utf-8"))
    assert named[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

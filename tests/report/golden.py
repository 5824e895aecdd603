"""Golden files: texts for people, next to the tests. COACH_UPDATE_GOLDEN=1 writes them anew."""

import difflib
import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "expected"


def unestimated(text: str) -> str:
    """`text` without the digits that follow from estimates: those get better; the wording stays the same."""
    text = re.sub(r"(learning curve: ).*", r"\1...", text)
    for estimate in (
        r"at most \S+, \S+ USD reserved",
        r"(?m)(?<=counted|eerLost) +\S+",  # RESERVED of the ledger
        r"\d+\.\d+ \(\d+\.\d+-\d+\.\d+\)",
        r"\d[\d.hms]* \(\d[\d.hms]*-\d[\d.hms]*\)",
    ):
        text = re.sub(estimate, lambda found: re.sub(r"\d", "#", found[0]), text)
    return text


def assert_golden(name: str, text: str) -> None:
    """`text`, without blanks at the ends of its lines, is what the golden file `name` has."""
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = FOLDER / name
    if os.environ.get("COACH_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    difference = "\n".join(difflib.unified_diff(expected.splitlines(), text.splitlines(), name, "now", lineterm=""))
    assert text == expected, f"{difference}\nif this is right: COACH_UPDATE_GOLDEN=1 and run again"

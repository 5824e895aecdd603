"""Each decision is a short record of one form."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, tracked

RECORDS = [path for path in tracked("docs/decisions/*.md") if path.name != "README.md"]
FORM = re.compile(
    r"# (?P<title>.+)\n\n(?P<date>2\d{3}-\d\d-\d\d)\.(?P<superseded> Superseded by \[.+\]\(.+\)\.)?\n\n"
    r"\*\*Context\.\*\* .+\n\n\*\*Decision\.\*\* .+\n\n\*\*Consequence\.\*\* .+",
    re.DOTALL,
)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_its_date_context_decision_and_consequence_and_its_line_in_the_index(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    record = FORM.fullmatch(text)
    assert record and len(text.split()) <= 250
    gone = " (superseded)" if record["superseded"] else ""
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    assert f"- {record['date']}: [{record['title']}]({path.name}){gone}\n" in index

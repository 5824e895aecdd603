"""Each decision is short: a line of at most 30 words, or a paragraph of at most 75."""

import re

from tests.docs.pages import ROOT

TEXT = (ROOT / "docs/project/decisions.md").read_text(encoding="utf-8")
LINES = re.findall(r"^- (\*\*.+)$", TEXT, re.MULTILINE)
PARAGRAPHS = re.findall(r"^### .+\n\n((?:[^\n#-].*\n)+)", TEXT, re.MULTILINE)


def test_a_decision_is_a_line_or_a_short_paragraph() -> None:
    assert len(LINES) > 50 and len(PARAGRAPHS) == TEXT.count("\n### ")
    assert [line for line in LINES if len(line.split()) > 32] == []
    assert [text for text in PARAGRAPHS if len(text.split()) > 80] == []


def test_nothing_else_is_on_the_page() -> None:
    body = TEXT.split("\n## ", 1)[1]
    other = [line for line in body.splitlines() if line.startswith("-") and not line.startswith("- **")]
    assert other == []

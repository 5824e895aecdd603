"""Pages are in plain standard English."""

import re

import pytest

from tests.docs.pages import PAGES, ROOT, prose

#: Words that a newcomer stumbles over, and what to write instead.
BANNED = {
    r"yardstick": "a small fixed task; machine speed",
    r"told|tells": "reported, shown, sent",
    r"beside": "compared with, next to",
    r"truths?": "true value, ground truth in full",
    r"(?:gave|gives?|giving) way": "was preempted",
    r"whoever|whomever": "name the subject",
    r"thrice": "three times",
    r"on the mean": "mean",
    r"lives": "runs, histories",
    r"stands": "is, is written",
}
#: The contract's page quotes its cases.
WRITTEN = [
    page
    for page in PAGES
    if (page.is_relative_to(ROOT / "docs") or page.parent == ROOT) and page.name != "nuclio-contract.md"
]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_banned_word(page):
    words = "|".join(BANNED)
    assert not re.findall(rf"\b(?:{words})\b", prose(page), re.IGNORECASE)

"""Pages, comments, docstrings, messages and names are in plain standard English."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

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
#: Only in code: pages may speak of people.
BANNED_IN_CODE = {word: instead for word, instead in BANNED.items() if word != r"truths?"} | {
    r"(?<!ground )truths?": "true value, dynamics",
    r"lived": "ran",
    r"somebody|nobody|everybody": "name the job, the pod or the process",
    r"right would be": "say what to write",
    r"AllocationPolicy": "Policy: a policy answers one question",
}

WRITTEN = [page for page in PAGES if page.is_relative_to(ROOT / "docs") or page.parent == ROOT]
CODE = [path for folder in ("coach", "functions") for path in sorted((ROOT / folder).rglob("*.py"))]
READ = {
    tokenize.COMMENT,
    tokenize.STRING,
    tokenize.NAME,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),
}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_banned_word(page):
    words = "|".join(BANNED)
    assert not re.findall(rf"\b(?:{words})\b", prose(page), re.IGNORECASE)


def banned(code: str) -> Iterator[str]:
    """`12: told` for each banned word in comments, strings and names; parts of a name count as words."""
    words = re.compile(rf"\b(?:{'|'.join(BANNED_IN_CODE)})\b", re.IGNORECASE)
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in READ:
            text = token.string.replace("_", " ") if token.type == tokenize.NAME else token.string
            # A sentence may go on in the next line.
            flat = re.sub(r"\s*\n\s*(?:#:? )?", " ", text)
            yield from (f"{token.start[0]}: {found}" for found in words.findall(flat))


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_banned_word_in_code(path: Path) -> None:
    assert not list(banned(path.read_text()))


@pytest.mark.parametrize(
    "code",
    [
        "told = 1\n",
        "is_told = 1\n",
        "# Whoever asks\n",
        'f"{x} right would be {y}"\n',
        '"""The mean\n\n    on the\n    mean."""\n',
        "x = 'it gives way'\n",
    ],
)
def test_banned_words_are_found_in_names_comments_and_strings(code: str) -> None:
    assert list(banned(code))


def test_ground_truth_is_a_word_of_the_field() -> None:
    assert not list(banned('"""Ground truth of a simulation; it is understood."""\n'))

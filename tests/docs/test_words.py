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
#: Only on pages, where a reader has no code to look at: repeat the noun.
BANNED_ON_PAGES = BANNED | {
    r"anew": "again",
    r"foretold|foretells?": "predicted",
    r"that of": "repeat the noun",
    r"(?:those|what) that": "jobs that, pods that: repeat the noun",
    r"so many": "a number",
}
#: The most words of a sentence, and of a cell of a table.
SENTENCE, CELL = 30, 25
#: Only in code: pages may speak of people.
BANNED_IN_CODE = {word: instead for word, instead in BANNED.items() if word != r"truths?"} | {
    r"(?<!ground )truths?": "true value, dynamics",
    r"lived": "ran",
    r"somebody|nobody|everybody": "name the job, the pod or the process",
    r"right would be": "say what to write",
    r"AllocationPolicy": "Policy: a policy answers one question",
}

WRITTEN = [page for page in PAGES if page.is_relative_to(ROOT / "docs") or page.parent == ROOT]
WRITTEN += [page for page in PAGES if page.is_relative_to(ROOT / "research/docs")]
#: The changelog's lines say what was before and what is now: they may be longer.
SENTENCES = [page for page in WRITTEN if page.name != "CHANGELOG.md"]
LINK = re.compile(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\([^)]*\)")
CODE = [path for folder in ("coach", "functions") for path in sorted((ROOT / folder).rglob("*.py"))]
READ = {
    tokenize.COMMENT,
    tokenize.STRING,
    tokenize.NAME,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),
}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_banned_word(page):
    words = "|".join(BANNED_ON_PAGES if page in SENTENCES else BANNED)
    assert not re.findall(rf"\b(?:{words})\b", prose(page), re.IGNORECASE)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page's prose: an item of a list and a paragraph begin one, a full stop or a colon ends one."""
    plain = LINK.sub(r"\1", re.sub(r"^[|#].*$", "", text, flags=re.MULTILINE))
    for part in re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )", plain):
        yield from re.split(r"(?<=[.!?:])\s+(?=[\"'(*`A-Z\[])", " ".join(part.split()))


def cells(text: str) -> Iterator[str]:
    """The cells of a page's tables."""
    for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        yield from (LINK.sub(r"\1", cell).strip() for cell in row.split("|"))


@pytest.mark.parametrize("page", SENTENCES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_and_no_cell_is_too_long_to_be_read_aloud(page):
    text = prose(page)
    assert [found for found in sentences(text) if len(found.split()) > SENTENCE] == []
    assert [found for found in cells(text) if len(found.split()) > CELL] == []


def test_a_code_block_is_not_the_subject_of_a_sentence():
    """A line behind a block that goes on in lower case has the block as its first word."""
    found = []
    for page in SENTENCES:
        text = page.read_text(encoding="utf-8")
        found += [f"{page.name}: {line}" for line in re.findall(r"^```\n\n([a-z].*)", text, re.MULTILINE)]
    assert found == []


def test_a_long_sentence_and_a_long_cell_are_found():
    assert max(len(found.split()) for found in sentences("A short one. Then " + "word " * 30)) == 31
    assert max(len(found.split()) for found in cells(f"| a | {'word ' * 26}|")) == 26


#: A sentence may go on in the next line.
NEXT_LINE = re.compile(r"\s*\n\s*(?:#:? )?")


def banned(code: str) -> Iterator[str]:
    """`12: told` for each banned word in comments, strings and names; parts of a name count as words."""
    words = re.compile(rf"\b(?:{'|'.join(BANNED_IN_CODE)})\b", re.IGNORECASE)
    # Most files have none, wherever their tokens begin and end.
    anywhere = re.compile(re.sub(r"\(\?<!.*?\)", "", words.pattern), re.IGNORECASE)
    if not any(anywhere.search(NEXT_LINE.sub(" ", text)) for text in (code, code.replace("_", " "))):
        return
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in READ:
            text = token.string.replace("_", " ") if token.type == tokenize.NAME else token.string
            yield from (f"{token.start[0]}: {found}" for found in words.findall(NEXT_LINE.sub(" ", text)))


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

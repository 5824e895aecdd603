"""README.md and docs/project/evidence.md show the numbers that are in results/."""

import re

import pytest

from benchmarks import evidence

TEXTS = {path.name: path.read_text(encoding="utf-8") for path in evidence.PAGES}


def test_the_numbers_are_those_of_the_results(capsys):
    assert evidence.main("--check") == 0, capsys.readouterr().err


def test_every_block_is_shown_once():
    shown = re.findall(rf"<!-- (\S+): {evidence.WRITTEN} -->", "".join(TEXTS.values()))
    assert sorted(shown) == sorted(evidence.BLOCKS)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_another_digit_in_a_block_is_noticed(text):
    changed = re.sub(rf"({evidence.WRITTEN} -->.*?\d)", r"\g<1>7", text, count=1, flags=re.DOTALL)
    assert changed != text and evidence.page(changed) == text


def test_text_around_the_tables_holds_no_measured_number():
    text = re.sub(r"<!-- (\S+): .*?<!-- end of \1 -->", "", TEXTS["evidence.md"], flags=re.DOTALL)
    assert not re.findall(r"\d(?: ?%| s\b| ms\b| MB\b| USD\b| times\b|x\b)", text)


def test_the_readme_is_read_in_five_minutes():
    assert len(TEXTS["README.md"].split()) <= 1000

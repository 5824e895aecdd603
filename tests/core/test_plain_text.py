"""Text that programs have said does nothing to who reads it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.plain_text import plain

SAID = {
    "\x1b]0;title\x07text": "text",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x1b[31mred\x1b[0m": "red",
    "\x1b[2Jcleared": "cleared",
    "\x9b31mred": "red",
    "\u202eabc": "abc",
    "a\0b": "ab",
    "one\r\ntwo\tthree": "one\ntwo\tthree",
    "\x1bPq#0\x1b\\x": "x",
    "\x1b": "",
    "\x1b[": "",
    "half \ud800": "half ",
    "line\u2028separator": "lineseparator",
    "Größe ≤ 3 µm 日本語": "Größe ≤ 3 µm 日本語",
}


@pytest.mark.parametrize(("said", "left"), SAID.items(), ids=map(ascii, SAID))
def test_escape_sequences_and_control_characters_go(said: str, left: str) -> None:
    assert plain(said) == left


@given(st.text(st.one_of(st.sampled_from("\x1b[]0;m\x07\x9b\\P"), st.characters())))
def test_whatever_is_said_none_of_them_is_left(said: str) -> None:
    left = plain(said)
    assert not [one for one in left if one not in "\n\t" and unicodedata.category(one) in ("Cc", "Cf", "Cs")]
    assert plain(left) == left

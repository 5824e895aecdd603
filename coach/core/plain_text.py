"""Text without what would act on a terminal, in a log or in an environment variable."""

from __future__ import annotations

import re
import unicodedata

#: Sequences that a terminal obeys: with parameters (CSI), with a text to their end (OSC, DCS, SOS, PM, APC), others.
_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?"
    "|\x1b[ -/]*[0-~]?"
)
#: Control characters, invisible ones that change the order of others, halves of characters, separators of lines.
_LEFT_OUT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plain(text: str) -> str:
    """The text without escape sequences and control characters; line breaks and tabs stay."""
    if text.isprintable():
        return text
    text = _SEQUENCES.sub("", text)
    return "".join(one for one in text if one in "\n\t" or unicodedata.category(one) not in _LEFT_OUT)

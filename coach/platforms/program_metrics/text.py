"""Numbers and their names in a line that a program prints.

A number is read whole or not at all: one that goes on in a form that is not known (`0-1`, `0.3 -> 0.2`, `1.13.0`, one
that another process cut) is none. A line is read from left to right: what is before a number, back to the last one
with a name, is where its own name is looked for.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

#: Characters of a line that are read; the rest of it is left out.
LONGEST_LINE = 1 << 16
#: Numbers with names that are read in a line; characters before one in which its name is; words of a name.
MAX_READINGS, BEFORE, MAX_TOKENS = 256, 200, 8
#: Numbers of a line, with names or without; characters of a word.
MAX_NUMBERS, LONGEST_WORD = 1000, 32


def a_set(words: str) -> frozenset[str]:
    """These words."""
    return frozenset(words.split())


#: Words that say on what a metric was measured.
EVALUATION = a_set("val valid validation validating test testing eval evaluation evaluating dev holdout")
TRAINING = a_set("train training trn learn")
PARTS = EVALUATION | TRAINING

_ESCAPES = re.compile(r"\x1b\[[0-9;:]*m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]+")
_MOVES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|.)")

_SPACES = r"\u00a0\u202f\u2009"
_SIGN = r"[-+\u2212]"
#: What may be a number: `number` says whether it is one.
_NUMBER = (
    rf"(?>{_SIGN}?(?:[0-9]+(?:[.,_'\u2019{_SPACES}][0-9]+)*\.?|\.[0-9]+)(?:[eEf]{_SIGN}?[0-9]+)?"
    rf"|{_SIGN}?(?:[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)\b)"
)
_PLAIN = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|[-+]?(?:nan|inf(?:inity)?)")
#: `0,91`, as most languages write it; `1,234` may be either.
_COMMA = re.compile(r"[-+]?(?:0,[0-9]+|[0-9]+,(?:[0-9]{1,2}|[0-9]{4,}))(?:e[-+]?[0-9]+)?")
#: Thousands, and what is between them and the decimals: `24,000.0`, `1,234,567`, `1_234.5`, `1'234.5`, `1.234,56`.
_GROUPED = [
    (re.compile(rf"[-+]?[0-9]{{1,3}}(?:{mark}[0-9]{{3}}){times}{decimals}"), point)
    for mark, times, decimals, point in (
        (",", "+", r"\.[0-9]+", "."),
        (",", "{2,}", "", "."),
        (rf"[_'\u2019{_SPACES}]", "+", r"(?:\.[0-9]+)?", "."),
        (rf"[_'\u2019{_SPACES}]", "+", ",[0-9]+", ","),
        (r"\.", "+", ",[0-9]+", ","),
    )
]
#: What may follow a number: per cent, a total (`3000/10000`, `90 of 100`), thousands, or a unit ...
_UNIT = re.compile(
    r"\s?(?P<percent>%|percent\b|pct\b)|\s*(?:/|\b(?:out )?of\b)\s*(?P<total>[0-9]+)(?![0-9.,/]*[0-9/])"
    r"|(?P<times>[kKM](?!\w)|\s[kKM](?=\s*(?:$|[,;|)\]])))|\s?(?P<unit>s|ms|us|\u00b5s|ns|min|h|it/s|s/it|[kKMG]i?B|B|dB|px"
    r"|(?:seconds|minutes|hours|days|epochs|steps|iterations|batches|samples|tokens)(?!\s*[=:]|\s+[0-9]))(?![\w/])"
)
#: `1 234` may be one number or two.
_GROUP = re.compile(r" [0-9]{3}(?![0-9])")
_TIMES = {"k": 1e3, "K": 1e3, "M": 1e6}
#: ... and then it is over, and does not go on: a mark of thousands before a letter is where another line has cut it.
_OVER = re.compile(
    rf"(?!['\u2019{_SPACES}][^\W\d])"
    r"(?=$|\s|[;|)\]}\"'`>\u2502\u2503\u00b1]|[*\u2191\u2193\u2713]+(?:\s|$)"
    r"|,(?![^\W_])|,[^\W\d]\w* ?[=:] ?[-+.0-9]|(?:\.|\.\.\.|\u2026)(?:\s|$))"
)
_GOES_ON = re.compile(
    r"\s*(?::|[-=~]>|\u2192|\.\.\s*[0-9]|(?<=%)\||[\u2013\u00d7~*^/]\s*[0-9(]|- ?(?>[0-9.]+)(?![\w.])"
    r"|x ?10\b|\bto [0-9.]| [eE][-+]?[0-9])"
)
#: A number in its type, as libraries print it: `tensor(0.25, device='cuda:0')`, `np.float64(0.25)`.
_WRAPPED = re.compile(
    r"(?:[A-Za-z_]\w{0,30}\.){0,3}\b(?:[tT]ensor|(?:Device)?[aA]rray|[bB]?[fF]loat[0-9]*|u?[iI]nt[0-9]*)\(\s*\[*\s*"
    rf"({_NUMBER})\s*\]*\s*(?:,\s*[a-z]\w*=(?:[^()]|\([0-9, ]*\))*)?\)|<tf\.Tensor: [^<>]*numpy=({_NUMBER})>"
)
#: What is between a name and its number.
_BETWEEN = re.compile(
    r"(?P<sign>\s*(?:(?:\b(?:is|was)\s*)?(?<![<>!=+*~:-])[:=]|(?<!\S)[-=]>|\u2192|[|\u2502\u2503]+|\b(?:is|was|of)\b)\s*|\s+)"
    r"(?P<open>[\[(]{0,2})['\"`]?\s*$"
)
#: Where a name may begin.
_EDGE = re.compile(r"[,;|()\[\]{}<>\u2502\u2503:=\t\"`#]|(?:^|\s)[-*\u2013\u2014\u2022]+\s|(?<!\w)'|'(?!\w)|[.!?]\s")
_LAST_NUMBER = re.compile(r".*(?:^|\s)[-+/%.,0-9]*[0-9][-+/%.,0-9]*(?:[a-z]{1,5}(?:/[a-z]{1,5})?)?\s+(?=.*[^\W0-9_])")
_PATH = re.compile(r"(?<!\S)(?:\.{0,2}/\S+|\S+\.\w+|\S+[/\\]\S+[/\\]\S+)\s+")
#: A mark in a name says that its numbers are in per cent: `Accuracy (%)`, `%WER`, `acc_pct`.
_PERCENT = re.compile(
    r"[,_]?\s*[\[(]?(?<![0-9])(?<![0-9] )(?:\bin )?(?:%|(?<![^\W_])(?:percent|pct)(?![^\W_]))[\])]?",
    re.IGNORECASE,
)
_LAST_PERCENT = re.compile(rf"(?i:{_PERCENT.pattern})['\"` ]*$")
#: What the numbers of several parts are of: `Loss: train 0.3, valid 0.25`.
_HEAD = re.compile(r"([^\W\d_][\w ]{0,30}?)\s*(?:[:|]|\s[-\u2013\u2014])\s*$")
_PARENTHESIS = re.compile(r"(\s*)\(([^()]{0,40})\)\s*$")
_PARTS = "|".join(sorted(PARTS, key=len, reverse=True))
_CONTEXT = re.compile(rf"(?<![\w./\\@-])({_PARTS})(?:_?[0-9]+)?(?:'s)?(?![\w/\\@-]|\.\w)", re.IGNORECASE)
_BEHIND = re.compile(rf"\s*\(\s*({_PARTS})\b[^()0-9]*\)", re.IGNORECASE)
#: `Loss after epoch 3: 0.5`, `Accuracy of the network on the 10000 test images: 54 %`.
_TAIL = re.compile(
    r"(?P<head>.*?\w)\s+(?P<tail>(?:after|at|in|on|of|for|over)\s(?:(?:after|at|in|on|of|for|over|the|all|whole|epoch|"
    rf"step|iteration|iter|batch|network|model|images|samples|examples|set|data|dataset|split|{_PARTS}|[0-9]+)\b\s*)+)",
    re.IGNORECASE,
)
#: How programs print their epoch: `Epoch 3/10`, `epoch: 0.5`, `Epoch: [3][10/100]`, `Epoch(val) [3]` ...
_EPOCH = re.compile(
    rf"(?<![\w.@/-])epoch(?:\(\w+\))?['\"]?\s*[:=#|]?\s*['\"]?\[?\s*(?P<number>{_NUMBER})"
    r"(?![\w%]|\s?(?:s|secs?|seconds|ms|min|minutes|h|hours)\b)",
    re.IGNORECASE,
)
#: ... but not their best or last one, how many there are, or how long one takes.
_NO_EPOCH = a_set("best last max maximum total per each every num number first warmup since")


@dataclass(frozen=True, slots=True)
class Reading:
    """A number with its name.

    `tokens`: the words of its name, those that are written together in one (`val_loss`). `context`: the nearest word
    that says on what it was measured, or "". `percent`: it was written with %, or as a part of a `total`; `value` is a
    hundredth then, or that part. `name` begins at `begin` of the line, the number is `at`.
    """

    tokens: tuple[tuple[str, ...], ...]
    value: float
    context: str = ""
    percent: bool = False
    total: bool = False
    unit: str = ""
    name: str = ""
    begin: int = 0
    at: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        """All words of its name."""
        return tuple(word for token in self.tokens for word in token)


def clean(line: str) -> str:
    """A line as a terminal shows it, without escape sequences, and numbers without the type that holds them."""
    line = _MOVES.sub(" ", _ESCAPES.sub("", line[:LONGEST_LINE]))
    if "(" in line or "numpy=" in line:
        line = _WRAPPED.sub(lambda found: _unwrapped(found[1] or found[2]), line)
    return line


def _unwrapped(text: str) -> str:
    return f"{text}0" if text.endswith(".") else text


def number(text: str) -> float | None:
    """The number that a text is; None where it is none, or may be one of two: `1,234` is 1234 or 1.234."""
    text = text.replace("\u2212", "-").lower()
    if text.lstrip("-+")[:1] not in ("i", "n"):
        text = text.replace("f", "e")  # as Julia writes it
    if _PLAIN.fullmatch(text):
        return float(text)
    if _COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    for form, point in _GROUPED:
        if form.fullmatch(text):
            whole, _, decimals = text.rpartition(point) if point in text else (text, "", "")
            return float(f"{re.sub('[^-+0-9]', '', whole)}.{decimals or 0}")
    return None


def words_of(text: str) -> tuple[str, ...]:
    """The words of a name: those of `val/loss`, `Val Loss`, `valid_1's loss` and `val_loss` are found alike."""
    return tuple(re.findall(r"[^\W_]+", text.replace("'s", "").lower()))


def tokens_of(name: str) -> tuple[tuple[str, ...], ...]:
    """The words of each token of a name, which spaces and slashes part, without a mark of per cent if more is there."""
    unmarked = _PERCENT.sub(" ", name)
    tokens = re.split(r"[\s/]+", unmarked if words_of(unmarked) else name)
    return tuple(words for token in tokens if (words := words_of(token)))


def all_parts(token: tuple[str, ...]) -> bool:
    """Whether all words of a token, but for numbers, say on what something was measured."""
    named = [word for word in token if not word.isdecimal()]
    return bool(named) and all(word in PARTS for word in named)


def in_percent(name: str) -> bool:
    """Whether a name says that its numbers are in per cent."""
    return _PERCENT.search(name) is not None


def _numbers(line: str) -> Iterator[tuple[int, int, float, re.Match[str] | None]]:
    """The whole numbers of a line: begin, end with the unit, value without it, and the unit."""
    for found in _NUMBERS.finditer(line):
        begin, end = found.span()
        text = found[0]
        if text.endswith("."):
            if len(re.findall("[.,]", text)) > 1:
                text, end = text[:-1], end - 1  # the end of a sentence
            elif line[end : end + 1] not in tuple(",;)]}|"):
                continue  # it was cut
        unit = _UNIT.match(line, end)
        over = unit.end() if unit else end
        grouped = _GROUP.match(line, end) if text.isdecimal() and len(text) <= 3 else None
        quoted = line[over : over + 1] not in ("'", "\u2019") or line.find(line[over], 0, begin) >= 0
        over_here = _OVER.match(line, over) and quoted and not _GOES_ON.match(line, over) and not grouped
        if over_here and (value := number(text)) is not None:
            yield begin, over, value, unit


_NUMBERS = re.compile(rf"(?<![\w.@#$~\u2248<>^*/\\&+\u2212-]){_NUMBER}")


def whole(line: str, begin: int, end: int) -> Reading | None:
    """The number that a pattern has found from `begin` to `end`, whole, also where the pattern has cut it."""
    for start, over, value, unit in _numbers(line):
        if start <= begin < over and not re.search(r"\w", line[over:end]):
            return _measured(value, unit)
        if start > begin:
            break
    rest = re.match(r"[.,_'\u2019]?[0-9]", line[end:])
    found = None if rest else number(line[begin:end].strip())
    return None if found is None else Reading((), found)


def _measured(value: float, unit: re.Match[str] | None) -> Reading:
    """A number with what follows it, without a name."""
    if unit is None:
        return Reading((), value)
    if unit["percent"]:
        return Reading((), round(value / 100.0, 15), percent=True)
    if unit["total"]:
        total = float(unit["total"])
        return Reading((), value / total if total > 0.0 and 0.0 <= value <= total else math.nan, total=True)
    if unit["times"]:
        return Reading((), value * _TIMES[unit["times"].strip()])
    return Reading((), value, unit=unit["unit"])


def readings(line: str) -> Iterator[Reading]:
    """The numbers of a clean line that have a name, in their order."""
    last = found = 0
    head: tuple[tuple[str, ...], ...] = ()
    for begin, end, value, unit in itertools.islice(_numbers(line), MAX_NUMBERS):
        first = max(last, begin - BEFORE)
        gap = line[first:begin]
        between = _BETWEEN.search(gap)
        if between is None or (between["open"] and not re.match(r"\s*['\"`]?\s*[\])]", line[end:])):
            continue
        name, context, start = _name(gap[: between.start()], firm=bool(between["sign"].strip()))
        tokens = tokens_of(_PATH.sub("", name))[-MAX_TOKENS:]
        if not tokens or not any(word[0].isalpha() for token in tokens for word in token):
            continue
        if len(tokens) == 1 and all_parts(tokens[0]):
            above = _HEAD.search(line[first : first + start])
            head = tokens_of(above[1]) if above else head
            tokens = (*head, *tokens)
        head = tokens[:-1] if all_parts(tokens[-1]) else ()
        behind = _BEHIND.match(line, end)
        context = behind[1].lower() if behind else context or part(line[: first + start])
        measured = _measured(value, unit)
        yield replace(measured, tokens=tokens, context=context, name=name, begin=first + start, at=begin)
        last, found = end, found + 1
        if found == MAX_READINGS:
            return


def _name(gap: str, *, firm: bool) -> tuple[str, str, int]:
    """The name at the end of this text, what it was measured on if that is behind it, and where it begins.

    `firm`: more than space is between the name and its number.
    """
    context = mark = ""
    if percent := _LAST_PERCENT.search(gap):
        gap, mark = gap[: percent.start()], percent[0]
    if bracket := _PARENTHESIS.search(gap):
        inner, gap = bracket[2], gap[: bracket.start()]
        context = part(inner)
        if not bracket[1] and not context and re.fullmatch(r"\w{1,12}", inner):
            gap = f"{gap}_{inner}"  # mAP50(B)
    gap = gap.rstrip("'\"` ")
    at = max((edge.end() for edge in _EDGE.finditer(gap)), default=0)
    text = gap[at:]
    if tail := _TAIL.fullmatch(text.strip()):
        context = context or part(tail["tail"])
        text = tail["head"] if firm else ""
    if before := _LAST_NUMBER.match(text):
        at, text = at + before.end(), text[before.end() :]
    return text.strip() + mark, context, at + len(text) - len(text.lstrip())


def part(text: str) -> str:
    """The last word in a text that says on what something is measured, or ""."""
    found = [match[1].lower() for match in _CONTEXT.finditer(text)]
    return found[-1] if found else ""


def epoch(line: str) -> float | None:
    """The epoch that a line names."""
    for found in _EPOCH.finditer(line):
        before = line[max(0, found.start() - LONGEST_WORD) : found.start()].split()
        if not before or before[-1].lower() not in _NO_EPOCH:
            return number(found["number"])
    return None


def under(reading: Reading, above: str) -> Reading:
    """A reading of a line that belongs to another one, which says on what its numbers were measured."""
    return reading if reading.context else replace(reading, context=above)

"""A table of any width shows every word of every cell whole, or says nothing of it."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from coach.cli.display import output
from coach.cli.display.output import Header
from coach.cli.display.whole_table import WholeTable

REASON = "needs 2 workers x 1 cpu, best partial fit 1, blocked by job lenet-digits"


def table(*headers: Header, keys: int = 1) -> WholeTable:
    return output.table(dict.fromkeys(headers, ()), keys)


def jobs(count: int = 3) -> WholeTable:
    made = table("NAME", "STATE", ("LOSS", "right"), ("SPENT / BUDGET", "right"), ("REASON", "wrap"))
    for n in range(count):
        made.add_row(f"job-{n}", Text("Training", "cyan"), f"0.902{n}", f"0.0021{n} / 0.01 USD", REASON)
    return made


def printed(made: object, width: int, *, terminal: bool = False) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=terminal, markup=False, highlight=False).print(made)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).rstrip("\n").split("\n")


WIDTHS = (30, 40, 50, 60, 80, 100, 200)


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_word_of_every_cell_is_whole_and_no_line_too_long(width: int, terminal: bool) -> None:
    lines = printed(jobs(), width, terminal=terminal)
    assert max(map(cell_len, lines)) <= width
    words = set(" ".join(lines).replace("─", " ").split())
    known = {word for line in printed(jobs(), 400) for word in line.replace("─", " ").split()}
    assert words == known


def test_columns_that_do_not_fit_come_in_blocks_with_the_first_column_again() -> None:
    assert [line.rstrip("─ ") for line in printed(jobs(2), 40)] == [
        "NAME   STATE       LOSS",
        "",
        "job-0  Training  0.9020",
        "job-1  Training  0.9021",
        "",
        "NAME       SPENT / BUDGET",
        "",
        "job-0  0.00210 / 0.01 USD",
        "job-1  0.00211 / 0.01 USD",
        "",
        "NAME   REASON",
        "",
        "job-0  needs 2 workers x 1 cpu, best",
        "       partial fit 1, blocked by job",
        "       lenet-digits",
        "job-1  needs 2 workers x 1 cpu, best",
        "       partial fit 1, blocked by job",
        "       lenet-digits",
    ]


def test_where_two_columns_do_not_fit_each_row_is_a_list() -> None:
    made = table("NAME", ("LOSS", "right"), ("REASON", "wrap"))
    made.add_row("resnet-on-cifar-with-a-long-name-2", "0.9020", "needs 2 workers x 1 cpu, blocked")
    assert printed(made, 36) == [
        "NAME",
        "resnet-on-cifar-with-a-long-name-2",
        "  LOSS    0.9020",
        "  REASON  needs 2 workers x 1 cpu,",
        "          blocked",
    ]


def test_a_number_wider_than_its_place_in_a_list_has_a_line_of_its_own() -> None:
    made = table("POLICY", ("a-policy-with-a-long-name", "right"), ("b", "right"))
    made.add_row("completion time, mean s", "12345678901234", "5")
    assert printed(made, 36)[2:] == [
        "  a-policy-with-a-long-name",
        "    12345678901234",
        "  b                          5",
    ]


def test_rows_that_two_columns_name_have_both_in_each_block() -> None:
    made = table(("EPOCH", "right"), ("ATTEMPT", "right"), ("RESERVED", "right"), ("COST", "right"), keys=2)
    made.add_row("7", "1", "0.0032", "0.0021")
    heads = [line.split() for line, rule in pairwise(printed(made, 26)) if "──" in rule]
    assert heads == [["EPOCH", "ATTEMPT", "RESERVED"], ["EPOCH", "ATTEMPT", "COST"]]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_that_is_moved_to_the_right_fits_too(width: int) -> None:
    lines = printed(Padding(jobs(), (0, 0, 0, 2), expand=False), width)
    assert max(map(cell_len, lines)) <= width
    assert sum(line.count("0.9020") for line in lines) == 1


def test_columns_that_wrap_share_what_is_left_and_keep_their_longest_word() -> None:
    made = table(("A", "wrap"), ("B", "wrap"), ("C", "right"))
    made.add_row("x" * 25 + " and a few more words", "some other words of a second column", "0.123456")
    lines = printed(made, 60)
    assert max(map(len, lines)) <= 60 and lines[2].endswith("0.123456") and "x" * 25 in lines[2]

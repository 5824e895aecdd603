"""Every row of cases.yaml: under Coach's host, under Nuclio's processor where it is given, and as last recorded."""

import pytest

from tests.contract import record, table
from tests.contract.conftest import Functions
from tests.contract.engine import Engine

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("case", table.CASES, ids=lambda case: case.title)
def test_the_caller_sees(case: table.Case, engine: Engine, functions: Functions) -> None:
    answer = table.ask(functions.get(case), case)
    expect = case.real if engine.real and case.real is not None else case.expect
    table.check(expect, answer)
    kept = record.load()["answers"].get(case.title)
    if kept is not None and not case.differs:  # no header more, none less
        assert answer.headers.keys() - {"Content-Length"} == kept["headers"].keys() - {"Content-Length"}


@pytest.mark.parametrize("title", record.load()["answers"])
def test_the_recorded_answer_of_nuclio_is_what_the_table_says(title: str) -> None:
    case = next((case for case in table.CASES if case.title == title), None)
    assert case is not None, "recorded, but no longer in the table: record again"
    table.check(case.real or case.expect, table.from_golden(record.load()["answers"][title]))

"""`make demo` ends with the command that opens the page of its job."""

import subprocess

from tests.docs.pages import ROOT


def test_the_demo_ends_with_the_command_that_opens_its_page() -> None:
    planned = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    last = planned.rstrip().splitlines()[-1]
    assert "Look at it in a browser:" in last and "/coach ui $(" in last

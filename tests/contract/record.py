"""Ask Nuclio's real processor every question of the contract, and write down what it answers.

    COACH_NUCLIO_PROCESSOR=... COACH_NUCLIO_WRAPPER=... COACH_NUCLIO_PYTHONPATH=... python -m tests.contract.record

writes golden.json beside this file and docs/reference/nuclio-contract.md; `--docs` writes only the page. Nuclio's
processor and wrapper come from its container image or from a build of your own; the Python path is a folder with
msgpack.
"""

import argparse
import datetime
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.contract import table
from tests.contract.engine import FUNCTIONS_PYTHON, NUCLIO, REPOSITORY, Engine, Running, real_missing
from tests.contract.scenarios_life import SCENARIOS

GOLDEN = Path(__file__).with_name("golden.json")
PAGE = REPOSITORY / "docs" / "reference" / "nuclio-contract.md"


@functools.cache
def load() -> dict[str, Any]:
    """What was recorded last: `about`, `answers` by case title, `facts` by scenario name."""
    if not GOLDEN.exists():
        return {"about": {}, "answers": {}, "facts": {}}
    loaded: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return loaded


def ask_everything(engine: Engine) -> dict[str, Any]:
    """All answers and facts of one engine."""
    running: dict[str, Running] = {}
    answers, facts = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for case in table.CASES:
                if case.host not in running:
                    started = engine.start(
                        Path(folder) / str(len(running)), table.source(case.host), **case.config
                    )
                    running[case.host] = started
                    started.wait_ready()
                answers[case.title] = table.golden(table.ask(running[case.host], case))
        finally:
            for started in running.values():
                started.__exit__()
        for number, scenario in enumerate(SCENARIOS):
            sys.stderr.write(f"{engine.name}: {scenario.name}\n")
            facts[scenario.name] = scenario.run(engine, Path(folder) / f"scenario{number}")
    return {"answers": answers, "facts": facts}


def about() -> dict[str, str]:
    """What was asked, and when."""
    version = subprocess.run(
        [os.environ["COACH_NUCLIO_PROCESSOR"], "--version"], capture_output=True, text=True, check=True
    )
    label = re.search(r'Label:"([^"]*)", GitCommit:"([^"]*)"', version.stdout)
    code = (
        "import platform, importlib.metadata as m; print(platform.python_version(), m.version('nuclio-sdk'))"
    )
    python, sdk = subprocess.run(
        [FUNCTIONS_PYTHON, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    return {
        "date": datetime.date.today().isoformat(),
        "nuclio": label.group(1) if label else "unknown",
        "commit": label.group(2) if label else "unknown",
        "python": python,
        "nuclio_sdk": sdk,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", action="store_true", help="write only the page")
    if not parser.parse_args().docs:
        missing = real_missing()
        if missing:
            sys.exit(missing)
        recorded = {"about": about(), **ask_everything(NUCLIO)}
        GOLDEN.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        load.cache_clear()
    from tests.contract.page import render

    PAGE.write_text(render(load()), encoding="utf-8")


if __name__ == "__main__":
    main()

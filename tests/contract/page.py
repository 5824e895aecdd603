"""Renders docs/reference/nuclio-contract.md from the table, the scenarios and the last recorded run."""

from typing import Any

from tests.contract import table
from tests.contract.engine import Answer
from tests.contract.scenarios import Scenario
from tests.contract.scenarios_life import SCENARIOS

_INTRO = """# Nuclio's contract, and Coach's function host

Coach's functions are Nuclio functions. On the `local` platform they run in Coach's own host
(`coach/platforms/local/host`): one HTTP address a function, one warm Python process a worker, no Docker. What a
function and its caller may rely on is one table of requests and answers (`tests/contract/cases.yaml`) and a list of
scenarios (`tests/contract/scenarios.py` and its siblings). Both engines are tested with it:

```bash not-run: needs Nuclio's processor
make test                                       # the host, always; and the recorded answers below
COACH_NUCLIO_PROCESSOR=/path/to/processor \\
COACH_NUCLIO_WRAPPER=/path/to/_nuclio_wrapper.py \\
COACH_NUCLIO_PYTHONPATH=/folder/with/msgpack \\
python -m pytest tests/contract                 # Nuclio's real processor too
python -m tests.contract.record                 # the same variables: asks it again, rewrites this page
```

Nuclio publishes its processor in container images only, so its part of the suite runs only where the processor
is installed; a skip is reported. The last command above writes this page.
"""

_HOST = """
## What the host adds

| option | meaning |
| --- | --- |
| `--config`, `--platform-config` | the processor's own files; the keys that count are named below |
| `--parent-fd N` | ends at once, with all it started, when that pipe closes (0: standard input) |
| `--ready-fd N` | writes one JSON line there when it is ready, or why it is not |
| `--cpus 0,1` | host and function run on these cores |
| `--log-file`, `--log-bytes` | the function's log, and what it prints, as JSON lines; rotated once, so bounded |

Of processor.yaml it reads `metadata`, `spec.handler`, `spec.eventTimeout` and the HTTP trigger's `url`, `numWorkers`,
`workerAvailabilityTimeoutMilliseconds`, `workerTerminationTimeout` and `attributes.maxRequestBodySize`; of
platform.yaml `healthCheck`.
The functions' Python and folders come from `NUCLIO_PYTHON_EXE_PATH` and `NUCLIO_PYTHON_PATH`, as with the processor.
`NUCLIO_PYTHON_WRAPPER_PATH` is not used: the host has its own wrapper, which needs only `nuclio_sdk`.
Exit codes: 0 stopped, 1 configuration, 2 a wrapper ended or could not load its function, 69 address in use, 75 the
parent died. Not implemented: the web admin and metrics addresses, batches, streams, CloudEvents, triggers other than
HTTP. The kernel kills a wrapper and its process group when the host dies, whatever the handler is doing; a
function's children in groups of their own must end themselves, here as under Nuclio.
"""


def render(recorded: dict[str, Any]) -> str:
    """The page."""
    about, answers, facts = recorded["about"], recorded["answers"], recorded["facts"]
    text = _INTRO + "\n## The last real run\n\n"
    if about:
        text += (
            f"Nuclio {about['nuclio']} (commit {about['commit'][:12]}), Python {about['python']}, nuclio-sdk "
            f"{about['nuclio_sdk']}, on {about['date']}: {len(answers)} answers and {len(facts)} scenarios recorded.\n"
        )
    else:
        text += "There was none yet.\n"
    unseen = [case.title for case in table.CASES if case.title not in answers]
    unseen += [scenario.name for scenario in SCENARIOS if scenario.name not in facts]
    text += f"\nNever seen real: {', '.join(unseen) if unseen else 'none'}.\n"
    text += "\n## Where the host differs on purpose\n\n| case | Nuclio | host | why |\n| --- | --- | --- | --- |\n"
    for case in table.CASES:
        if case.real is not None:
            text += _row(case.name, _expected(case.real), _expected(case.expect), case.differs or "")
    for scenario in SCENARIOS:
        if scenario.real is not None:
            mine = {key: scenario.expect[key] for key in scenario.real}
            text += _row(scenario.name, _facts(scenario.real), _facts(mine), scenario.differs or "")
    for group in dict.fromkeys(case.group for case in table.CASES):
        text += f"\n## {group}\n\n| case | handler | Nuclio answered |\n| --- | --- | --- |\n"
        for case in table.CASES:
            if case.group == group:
                text += _row(case.name, _code(case), _recorded(answers.get(case.title)))
    text += "\n## Scenarios\n\n| scenario | Nuclio showed |\n| --- | --- |\n"
    for scenario in SCENARIOS:
        text += _row(scenario.name, _scenario(scenario, facts))
    return text + _HOST


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _code(case: table.Case) -> str:
    text = case.code or (f"return {case.returns}" if case.returns else "")
    if case.request.get("path") or case.request.get("method"):
        text = f"{case.request.get('method', 'POST')} {case.request.get('path', '/')}: {text}".rstrip(": ")
    return _quoted(_short(text, 100)) if text else ""


def _recorded(kept: dict[str, Any] | None) -> str:
    if kept is None:
        return "never seen real"
    answer = table.from_golden(kept)
    body = (
        f"{len(answer.body)} bytes"
        if "size" in kept or "base64" in kept
        else _quoted(_short(answer.text, 90))
    )
    return f"{answer.status} {_type(answer)} {body}".replace("  ", " ").rstrip()


def _type(answer: Answer) -> str:
    return answer.header("Content-Type") or "(no type)"


def _expected(expect: dict[str, Any]) -> str:
    return f"{expect['status']} {expect.get('body', '')}".rstrip()


def _facts(facts: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {_fact(value)}" for name, value in facts.items())


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return f"({_facts(value)})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else _short(str(value), 90)


def _scenario(scenario: Scenario, facts: dict[str, Any]) -> str:
    return _facts(facts[scenario.name]) if scenario.name in facts else "never seen real"


def _short(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def _quoted(text: str) -> str:
    return f"``{text}``" if "`" in text else f"`{text}`" if text else ""

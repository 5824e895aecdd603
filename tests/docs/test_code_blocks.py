"""Code blocks are run, parsed or validated; a block that cannot be run says why in its info string.

| info string | what is done with the block |
| --- | --- |
| `python` | run, all of a page in order in one namespace |
| `python file=NAME` | written to NAME, where later blocks of the page can import it; compiled |
| `python functions` | run by the functions' Python |
| `python pytorch` | parsed; test_bring_your_model runs it |
| `diff file=FOLDER` | what makes before.py model.py there; test_bring_your_model compares |
| `bash` | `coach`, `make` and `python -m` lines are parsed: command, options, target, module exist |
| `bash run` | the `coach` lines are run as well |
| `bash run-on-cluster` | `make test-kubernetes ALL=1` runs it; the `coach` and `make` lines are parsed here |
| `bash not-run: REASON` | as `bash`, and other commands may occur |
| `yaml` | loaded: job files by the real loader, Gang objects by the CRD's schema |
| `yaml scenario` | loaded as an experiment's scenario |
| `json`, `toml`, `ini` | parsed |
| `text` | output or a drawing: nothing |
"""

import configparser
import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from itertools import dropwhile
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import typer
import yaml

from coach.cli.commands import app
from coach.cli.main import invoke
from coach.cli.program import split
from coach.jobfiles.load import load_jobs
from coach.jobfiles.training_search import load_search
from coach_research.scenario import Scenario
from tests.docs.pages import PAGES, ROOT, blocks
from tests.required import missing

pytestmark = pytest.mark.standard

GROUP: Any = typer.main.get_command(app)
BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON_PAGES = sorted({block.page for block in BLOCKS if block.language == "python"})


def of(*languages: str) -> Any:
    """Parametrizes a test with the blocks in these languages."""
    chosen = [block for block in BLOCKS if block.language in languages]
    assert chosen
    return pytest.mark.parametrize("block", chosen, ids=str)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader has it: the job files and models, and a state folder of its own."""
    for name in ("jobs", "functions", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    return tmp_path


def test_every_block_has_a_language_and_known_words():
    python = r"python( file=\S+| functions| pytorch)?"
    words = rf"(?:{python}|diff file=\S+|bash( run| run-on-cluster| not-run: .+)?|yaml( scenario)?|json|toml|ini|text)"
    assert [f"{block}: {block.info}" for block in BLOCKS if not re.fullmatch(words, block.info)] == []


def test_no_page_has_an_indented_block_that_this_test_would_not_see():
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        found += [f"{page.relative_to(ROOT)}: {line}" for line in re.findall(r"(?<=\n\n)    \S.*", text)]
    assert not found


# -- commands ---------------------------------------------------------------------------------------------------------


def commands(text: str) -> list[list[str]]:
    """The commands of a block, without sudo and settings of variables."""
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    shown = [list(dropwhile(lambda word: word == "sudo" or re.match(r"[A-Z_]+=", word), words)) for words in lines]
    return [words for words in shown if words]


def expanded(words: list[str]) -> list[str]:
    """The words with patterns of file names replaced, as a shell does."""
    return [name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]


def parse(words: list[str]) -> None:
    """Parse a line as its program would. Raises what is wrong with it."""
    if words[0] == "coach":
        if len(words) > 1 and not words[1].startswith("-"):
            own, program = split(words[1:])
            command = GROUP.get_command(click.Context(GROUP), own[0])
            assert command is not None, f"no command {own[0]}"
            command.make_context(own[0], expanded(own[1:]), obj=program)
        elif words[1:] != ["--install-completion"]:  # parsing does it
            GROUP.make_context("coach", words[1:])
    elif words[0] == "make":
        folder, targets = (words[2], words[3:]) if words[1] == "-C" else ("", words[1:])
        rules = (ROOT / folder / "Makefile").read_text()
        for target in targets:
            assert "=" in target or re.search(rf"^[\w -]*\b{target}\b[\w -]*:", rules, re.MULTILINE), target
    elif words[0].endswith("python") and words[1] == "-m":
        assert importlib.util.find_spec(words[2]), words[2]
    else:
        assert words[0] in ("export", "cd"), f"{words[0]} is not checked: mark the block not-run, with a reason"


@of("bash")
def test_commands_exist_with_their_options(block, workplace):
    for words in commands(block.text):
        if not block.words.startswith(("not-run", "run-on-cluster")) or words[0] in (
            "coach",
            "make",
            "python",
        ):
            parse(words)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.words == "run"], ids=str)
def test_commands_run(block, workplace, capsys):
    for words in commands(block.text):
        assert words[0] == "coach"
        one_process = ["--processes", "1"] if words[1] == "simulate" else []  # starting more takes most of the time
        code = invoke(expanded(words[1:]) + one_process)
        assert code == 0, capsys.readouterr().err


# -- code and files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python_runs(page, workplace):
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "python":
            code = compile(block.text, str(block), "exec")
            if block.words.startswith("file="):
                path = workplace / block.words.removeprefix("file=")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
            elif block.words == "pytorch":
                continue
            elif block.words == "functions":
                python = ROOT / ".venv-functions/bin/python"
                if not python.exists():
                    missing("no Python for the functions: make setup")
                subprocess.run([python, "-c", block.text], check=True, cwd=workplace)
            else:
                exec(code, names)


@of("yaml")
def test_yaml_is_what_it_says(block, tmp_path):
    for document in yaml.safe_load_all(block.text):
        kind = document.get("kind") if isinstance(document, dict) else None
        if block.words == "scenario":
            assert Scenario.model_validate(document).module()
        elif kind == "TrainingJob":
            (tmp_path / "job.yaml").write_text(block.text)
            load_jobs([tmp_path / "job.yaml"], check_files=False)
        elif kind == "TrainingSearch":
            load_search(tmp_path / "search.yaml", block.text.encode(), check_files=False)
        elif kind in ("Gang", "TrainingBudget"):
            crd = yaml.safe_load((ROOT / f"deploy/chart/files/{kind.lower()}-crd.yaml").read_text())
            [version] = crd["spec"]["versions"]
            jsonschema.Draft4Validator(version["schema"]["openAPIV3Schema"]).validate(document)


@of("json", "toml", "ini")
def test_other_files_can_be_parsed(block):
    read: Any = {
        "json": json.loads,
        "toml": tomllib.loads,
        "ini": configparser.ConfigParser(strict=True).read_string,
    }
    read[block.language](block.text)

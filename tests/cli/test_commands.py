"""The commands, in this process: what they print, where, and what they end with."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from coach.cli.commands import OTHER_WORDS, REPLACED
from coach.cli.main import invoke
from coach.core.errors import PermanentError
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.report.row_types import EpochRow, ForecastRow, JobDetails, JobRow, LedgerRow, columns
from scripts.generate import cli_page as reference
from tests.cli.conftest import ROOT, keep
from tests.report.golden import assert_golden, unestimated
from tests.report.recorded_jobs import half_way, steady_job, two_jobs
from tests.required import small_disk

pytestmark = pytest.mark.standard

GOOD = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: digits}
spec:
  model: {file: model.py}
  data: {format: digits8x8}
  target: {accuracy: 0.9}
  budget: {unlimited: true}
  workers: {min: 1, max: 2}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("")
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = invoke(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def typed(kind: Any, found: Any) -> Any:
    """What was printed as JSON, as the type it is a picture of; every field strictly."""
    return TypeAdapter(kind).validate_json(json.dumps(found), strict=True)


# -- help and documentation ---------------------------------------------------------------------------------------


def test_coach_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert out.startswith("Usage: coach")
    for name, _ in reference.helps():
        assert name.partition(" ")[0] in out


@pytest.mark.parametrize(("name", "text"), list(reference.helps()))
def test_every_command_has_an_example_and_fits_the_width(name: str, text: str) -> None:
    assert re.search(rf"Examples?:\s+coach {name}", text)
    assert max(map(len, text.splitlines())) <= reference.WIDTH


@pytest.mark.parametrize(("name", "text"), list(reference.helps()))
def test_a_help_begins_with_at_most_fifteen_options(name: str, text: str) -> None:
    first, *others = re.split(r"^(?!Usage|Arguments)[A-Z].*:$", text, flags=re.MULTILINE)[1:] or [""]
    options = re.findall(r"^  (?:-\w, )?--([a-z-]+)", first, re.MULTILINE)
    assert len(set(options) - {"help"}) <= 15, name
    assert all(panel.strip() for panel in others), "no empty panel"


@pytest.mark.parametrize("word", REPLACED)
def test_an_option_that_went_names_its_field(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--budget", "5USD", "--target", "loss=0.3", "--workers", "1-2", "--resumes", "--dry-run"]
    assert invoke([*words, word, "2", "--", "true"]) == 2
    assert f"No such option: {word}. A job file's field says it: {REPLACED[word]}" in capsys.readouterr().err
    assert invoke([*words, *REPLACED[word].split(), "--", "true"]) == 0
    assert REPLACED[word].partition("=")[2] in capsys.readouterr().out


def test_the_summaries_of_the_commands_are_whole_sentences() -> None:
    _, text = next(reference.helps())
    assert "..." not in text.partition("Commands:")[2]


def test_the_site_has_the_help_of_each_command_and_each_option_of_many_once() -> None:
    made = reference.page((ROOT / reference.PAGE).read_text(encoding="utf-8"))
    shown = dict(re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)^```$", made, re.DOTALL | re.MULTILINE))
    research = {"convert", "estimators", "experiment", "train"}
    for name, text in reference.helps():
        if name.partition(" ")[0] in research:
            assert f"coach {name}" not in shown
            continue
        block = shown[f"coach {name}".rstrip()]
        assert block.partition("Options")[0].split() == text.partition("Options:")[0].split()
        options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text.partition("Options:")[2], re.MULTILINE))
        assert {option for option in options if option not in block} == set()
    assert shown["Options of many commands"].count("--help") == 1 == made.count("Show this message and exit.")


# -- errors ---------------------------------------------------------------------------------------------------------


def broken(error: BaseException) -> Any:
    def raise_it() -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ZeroDivisionError("oh"),
            1,
            "coach: this is a bug of Coach: ZeroDivisionError: oh\ncoach: please report it",
        ),
        (PermanentError("no MXNet"), 5, "coach: no MXNet\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 130, ""),
    ],
)
def test_errors_end_in_one_place(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr(platform, "python_version", broken(error))
    assert invoke(["--version"]) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert "Traceback" not in err
    if said:
        assert invoke(["--version"], debug=True) == code
        assert "Traceback" in capsys.readouterr().err


# -- ps and show ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (">&-", "coach: standard output is closed, so nothing was done; to see nothing: > /dev/null"),
        ("> /dev/full", "coach: cannot write or read: no space left on device"),
    ],
)
def test_an_output_that_takes_nothing_is_said_in_one_line(output: str, words: str, tmp_path: Path) -> None:
    line = f"exec {sys.executable} -m coach.cli.main ps {output}"
    environment = {**os.environ, "COACH_HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (5, f"{words}\n")


def test_names_that_are_no_text_and_homes_that_cannot_be_are_no_bugs_of_coach(tmp_path: Path) -> None:
    folder = tmp_path / "ü"
    folder.mkdir()
    start = [sys.executable, "-m", "coach.cli.main"]
    run = ["run", "--budget", "1USD", "--target", "loss=1", "--dry-run", "--", "true"]
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*start, *run], cwd=folder, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 5 and done.stderr.count("\n") == 1, done.stderr
    assert "is no text in ascii" in done.stderr and "LC_ALL=C.UTF-8" in done.stderr

    home = str(tmp_path / "/".join("x" * 200 for _ in range(3)))
    environment = {**os.environ, "COACH_HOME": home}
    budget = [*start, "budget", "set", "a", "5USD"]
    done = subprocess.run(budget, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 5 and done.stderr.count("\n") == 1, done.stderr
    assert home in done.stderr and "COACH_HOME names another" in done.stderr


@pytest.mark.root
def test_a_state_folder_that_cannot_change_is_read(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as place:
        home = StateDirectory(place / "home")
        keep(home, steady_job())
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        environment = {**os.environ, "COACH_HOME": str(home.path)}
        for words, code in ((["ps"], 0), (["events", "steady"], 0), (["budget", "set", "a", "5USD"], 5)):
            done = subprocess.run(
                [sys.executable, "-m", "coach.cli.main", *words],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == code and "bug of Coach" not in done.stderr, done.stderr


def test_ps_without_jobs_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ps")
    # The folder's path may be long enough to wrap the line.
    assert (code, " ".join(out.split()).endswith("start one with: coach run FILE")) == (0, True)
    assert run(capsys, "ps", "-o", "json")[1] == "[]\n"


def test_ps_lists_the_jobs_of_all_journals(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, steady_job())
    keep(home, two_jobs(), number=2)
    code, out, _ = run(capsys, "ps")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["steady", "digits", "pictures"]


def test_ps_as_json_has_typed_rows_with_the_promised_fields(
    capsys: pytest.CaptureFixture[str], home: StateDirectory
) -> None:
    keep(home, two_jobs())
    found = json.loads(run(capsys, "ps", "-o", "json")[1])
    rows = typed(list[JobRow], found)
    assert [row.name for row in rows] == ["digits", "pictures"]
    assert list(found[0]) == [*columns(JobDetails)]
    assert found[1]["budget"] is None


def test_ps_as_csv_has_the_same_columns(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, two_jobs())
    header, *rows = run(capsys, "ps", "-o", "csv")[1].splitlines()
    assert header.split(",") == list(columns(JobRow))
    assert [row.split(",")[0] for row in rows] == ["digits", "pictures"]


def test_a_job_whose_handler_died_does_not_seem_to_train(
    capsys: pytest.CaptureFixture[str], home: StateDirectory
) -> None:
    keep(home, half_way())
    rows = json.loads(run(capsys, "ps", "-o", "json")[1])
    assert {(row["state"], row["reason"]) for row in rows} == {("Waiting", "HandlerStopped")}
    handler = Journal.write(home.journal(1))
    rows = json.loads(run(capsys, "ps", "-o", "json")[1])
    handler.close()
    assert rows[0]["state"] == "Training"


@pytest.mark.parametrize("width", [80, 120])
def test_show(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    keep(home, steady_job())
    code, out, _ = run(capsys, "show", "steady", "--events")
    assert code == 0
    tables = out.partition("Epochs\n")[2].partition("Events\n")[0]
    assert max(map(len, tables.splitlines())) <= width
    assert_golden(f"show-{width}.txt", unestimated(out.replace(str(home.path), "HOME")))


def test_show_lists_what_was_considered_and_why_it_was_refused(
    capsys: pytest.CaptureFixture[str], home: StateDirectory
) -> None:
    keep(home, half_way())
    _, out, _ = run(capsys, "show", "digits")
    said = out.partition("considered for the last whole epoch instead of 3x1, and refused:\n")[2].splitlines()
    assert said[0].startswith("    no gain: 1x1 (") and said[0].endswith(" % slower)")
    assert said[1].startswith("    no room: no cores left: 3x2 (") and said[1].endswith(" % faster)")
    considered = json.loads(run(capsys, "show", "digits", "-o", "json")[1])["considered"]
    assert {one["verdict"] for one in considered} == {"chosen", "no gain", "no room"}
    assert len(considered) == 9


def test_show_as_json_has_everything(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, two_jobs())
    found = json.loads(run(capsys, "show", "digits", "-o", "json")[1])
    assert list(found)[: len(columns(JobRow))] == list(columns(JobRow))
    typed(JobRow, {name: found[name] for name in columns(JobRow)})
    epochs = typed(list[EpochRow], found["epochs"])
    entries = typed(list[LedgerRow], found["ledger"])
    forecasts = typed(list[ForecastRow], found["forecasts"])
    assert [one.share for one in forecasts] == [0.1, 0.5, 0.9]
    assert forecasts[-1].actual_cost == pytest.approx(found["spent"])
    assert len(epochs) == len(entries)
    assert found["epoch"] == sum(epoch.kind == "full" for epoch in epochs)
    assert set(found["ledger"][0]) == set(columns(LedgerRow))
    assert entries[-1].spent == pytest.approx(found["spent"])
    assert found["spec"]["metadata"]["name"] == "digits"
    assert found["events"][-1]["text"].startswith("Succeeded: ")
    assert {"why", "speed", "convergence"} <= set(found)


def test_show_as_csv_has_the_epochs(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    keep(home, two_jobs())
    header, *rows = run(capsys, "show", "digits", "-o", "csv")[1].splitlines()
    assert header.split(",") == list(columns(EpochRow))
    assert {row.split(",")[0] for row in rows} == {"digits"}


# -- export, plot, validate, convert, estimators ----------------------------------------------------------------------


def test_export_writes_four_files_and_names_them(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, tmp_path: Path
) -> None:
    keep(home, two_jobs())
    code, out, _ = run(capsys, "export", "digits", "--dir", str(tmp_path / "out"))
    assert code == 0
    assert out.split() == [
        str(tmp_path / "out" / name) for name in ("summary.csv", "epochs.csv", "forecasts.csv", "ledger.csv")
    ]
    assert "pictures" not in (tmp_path / "out" / "epochs.csv").read_text()


def test_the_last_run_is_that_of_the_youngest_handler(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, tmp_path: Path
) -> None:
    keep(home, steady_job())
    later = half_way()
    for record in later.history:
        object.__setattr__(record, "at", record.at + 1000)
    keep(home, later, number=2)
    run(capsys, "export", "--last", "-d", str(tmp_path))
    assert [row.split(",")[0] for row in (tmp_path / "summary.csv").read_text().splitlines()[1:]] == [
        "digits",
        "pictures",
    ]


def test_plot_draws_jobs_and_leaves_out_those_without_an_epoch(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, tmp_path: Path
) -> None:
    keep(home, steady_job())
    keep(home, half_way(0), number=2)
    code, out, _ = run(capsys, "plot", "--dir", str(tmp_path / "out"), "--format", "svg")
    assert code == 0
    assert len(out.split()) == 6
    assert all(Path(path).stat().st_size > 1000 for path in out.split())


def test_a_warning_is_told_on_stderr_and_the_file_is_good(capsys: pytest.CaptureFixture[str], job_file: Path) -> None:
    job_file.write_text(job_file.read_text().replace("spec:", "spec:\n  suspend: true", 1))
    code, out, error = run(capsys, "validate", str(job_file))
    assert (code, out.count("\n"), error.count("\n")) == (0, 1, 1)
    assert error.startswith(f"warning: {job_file}:") and "only a cluster obeys it" in error


def test_validate_says_what_a_good_file_asks_for(capsys: pytest.CaptureFixture[str], job_file: Path) -> None:
    code, out, _ = run(capsys, "validate", str(job_file))
    assert (code, out) == (0, f"{job_file}: digits: accuracy 0.9 3 times in a row, no budget, 1x1 to 2x4\n")


THESIS = ROOT / "tests/data/thesis/jobs/LeNet/twoTenant83.json"


def test_what_convert_writes_is_valid(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "convert", str(THESIS), "--dir", str(tmp_path / "new"))
    assert (code, out.split()) == (0, [str(tmp_path / "new" / "twoTenant83.yaml")])
    assert run(capsys, "validate", "--no-check-files", out.strip())[0] == 0
    code, _, err = run(capsys, "convert", str(THESIS), "--dir", str(tmp_path / "new"))
    assert (code, "there already, nothing was written" in err) == (2, True)
    assert run(capsys, "convert", str(THESIS), "--dir", str(tmp_path / "new"), "--force")[0] == 0


def test_convert_prints_where_no_folder_is_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "convert", str(THESIS), str(THESIS.with_name("singleTenant83.json")))
    assert code == 0
    (tmp_path / "all.yaml").write_text(out)
    assert run(capsys, "validate", "--no-check-files", str(tmp_path / "all.yaml"))[1].count("\n") == 3


def test_files_of_one_name_do_not_overwrite_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = THESIS.parents[1] / "Cifar10" / THESIS.name
    _, out, _ = run(capsys, "convert", str(THESIS), str(other), "-d", str(tmp_path))
    assert [Path(line).name for line in out.split()] == ["twoTenant83.yaml", "Cifar10-twoTenant83.yaml"]


def test_estimators_are_judged_on_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    curves = (ROOT / "coach/simulation/data/learning_curves.csv").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(curves[:2]) + "\n")
    code, out, _ = run(capsys, "estimators", str(tmp_path / "few.csv"))
    assert code == 0
    assert {"THESIS", "OPTIMUS", "COACH"} <= set(out.split())
    found = json.loads(run(capsys, "estimators", str(tmp_path / "few.csv"), "-o", "json")[1])
    assert set(found[0]) >= {"subject", "measure", "thesis", "optimus", "coach"}


def test_version_says_which_coach_and_which_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"coach \S+, Python 3\.\d+\.\d+\n", run(capsys, "--version")[1])


# -- words of other programs -------------------------------------------------------------------------------------------


def test_the_words_of_other_programs_name_commands() -> None:
    names = {name.partition(" ")[0] for name, _ in reference.helps()}
    assert {meant.partition(" ")[0] for meant in OTHER_WORDS.values()} <= names
    assert not (names - {"train"}) & set(OTHER_WORDS)

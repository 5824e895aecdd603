"""The thesis's job files become ours, with all they say; what is no thesis file is reported like any mistake."""

import json
from pathlib import Path

import pytest

from coach.core.cluster import Allocation
from coach.core.spec.resources import PolicyName
from coach.core.spec.training import DataFormat
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_jobs
from coach_research.thesis import job_files
from coach_research.thesis.convert import convert, convert_to_yaml
from tests.jobfiles.reading import read_jobs

ROOT = Path(__file__).parents[3]
FILES = ROOT / "tests/data/thesis/jobs"
ALL = sorted(FILES.glob("[LC]*/*.json"))

ALLOCATIONS = {
    "One": (1, 1),
    "OneTwo": (1, 2),
    "Two": (2, 2),
    "TwoOne": (2, 1),
    "Three": (3, 3),
    "ThreeOne": (3, 1),
}


def test_all_38_files_are_here():
    assert len(ALL) == 38


@pytest.mark.parametrize("path", ALL, ids=[f"{path.parent.name}-{path.stem}" for path in ALL])
def test_a_thesis_file_becomes_jobs_that_say_the_same(path):
    jobs = [converted.job for converted in convert(path)]
    words, _, fixed = path.stem.partition("Tenant83")
    assert len(jobs) == {"single": 1, "two": 2, "three": 3}[words]
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        spec = job.spec
        if path.parent.name == "LeNet":
            assert (spec.model.file, spec.data.format) == ("functions/models/lenet.py", DataFormat.IDX)
            assert (spec.target.loss, spec.data.size) == (0.85, 60_000)
        else:
            assert (spec.model.file, spec.data.format) == ("functions/models/resnet18.py", DataFormat.CIFAR10)
            assert (spec.target.loss, spec.data.size) == (0.5, 25_000)
        assert spec.target.epochs_in_a_row == 3
        assert spec.budget.unlimited
        assert spec.testing is None
        static = ALLOCATIONS[fixed.removeprefix("Static")] if fixed else None
        assert spec.policy.allocation == (Allocation(*static) if static else None)
        assert spec.policy.name == (PolicyName.STATIC if static else PolicyName.COACH)


@pytest.mark.parametrize("path", ALL, ids=[f"{path.parent.name}-{path.stem}" for path in ALL])
def test_what_is_written_reads_again_as_the_same_jobs(path):
    jobs = [converted.job for converted in convert(path)]
    assert read_jobs(convert_to_yaml(path)) == jobs


@pytest.fixture
def write(tmp_path):
    """Writes a thesis file with one job, with these changes to the job and to its testing errors."""
    (tmp_path / "errorFiles").mkdir()

    def write(job=(), errors=()):
        good = json.loads((FILES / "LeNet/singleTenant83.json").read_text())[0]
        basic = json.loads((FILES / "errorFiles/basicErrorFile.json").read_text())
        (tmp_path / "errorFiles/basicErrorFile.json").write_text(json.dumps({**basic, **dict(errors)}, indent="\t"))
        (tmp_path / "job.json").write_text(json.dumps([{**good, **dict(job)}], indent="\t"))
        return tmp_path / "job.json"

    return write


def test_a_budget_that_counts_is_kept(write):
    spec = convert(write({"budget": 12.5}, {"ignoreBudget": 0}))[0].job.spec
    assert (spec.budget.amount, spec.budget.currency) == (12.5, "USD")


def test_error_factors_are_kept(write):
    path = write(errors={"marginalUtility": 1.5, "convergenceEpoch": 0.5, "costEstimation": 2})
    factors = convert(path)[0].job.spec.error_factors
    assert (factors.speed, factors.convergence, factors.cost) == (1.5, 0.5, 2.0)


def test_a_percentage_of_the_data_is_a_number_of_samples(write):
    assert convert(write({"dataSetSize": 10}))[0].job.spec.data.size == 6_000


@pytest.mark.parametrize(
    ("errors", "smallest", "largest", "policy"),
    [
        ({}, (1, 1), (4, 4), "coach"),
        ({"maxWorkers": 8, "maxServers": 2}, (1, 1), (8, 2), "coach"),
        ({"staticWorkers": 3}, (3, 1), (3, 4), "coach"),
        ({"staticWorkers": 6, "staticServers": 5}, (6, 5), (6, 5), "static"),
    ],
)
def test_zero_means_no_limit_and_two_fixed_counts_are_a_static_policy(write, errors, smallest, largest, policy):
    path = write(errors=errors)
    spec = convert(path)[0].job.spec
    assert spec.limits == (Allocation(*smallest), Allocation(*largest))
    assert spec.policy.name == policy
    assert read_jobs(convert_to_yaml(path)) == [convert(path)[0].job]


WRONG = [
    (
        {"budget": "much"},
        {},
        'job.json:3:13 budget: not a number within bounds ("much") - a number from 1e-06 to 1e+09',
    ),
    ({"budget": True}, {}, "budget: not a number within bounds (true)"),
    ({"dataSetSize": 101}, {}, "dataSetSize: not a number within bounds (101) - a number from 0.001 to 100"),
    ({"targetLoss": None}, {}, "targetLoss: required (not there)"),
    ({"imageUrl": 3}, {}, "imageUrl: not text (3) - text"),
    ({"colour": 3}, {}, 'colour: no such field ("colour") - one of budget, dataSetSize,'),
    (
        {"scriptPath": "/x/VGG/main.py"},
        {},
        'unknown network ("/x/VGG/main.py") - a path with /LeNet/ or /Cifar10/',
    ),
    (
        {"testingErrorsPath": "../../etc/passwd"},
        {},
        'testingErrorsPath: no such file ("../../etc/passwd") - a file in',
    ),
    (
        {},
        {"staticWorkers": -1},
        "basicErrorFile.json:7:19 staticWorkers: not a whole number within bounds (-1)",
    ),
    (
        {},
        {"ignoreBudget": 2},
        "ignoreBudget: not a whole number within bounds (2) - a whole number from 0 to 1",
    ),
]


@pytest.mark.parametrize(("job", "errors", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_mistake_in_a_thesis_file_is_reported_with_its_place(write, job, errors, message):
    with pytest.raises(JobFileError) as caught:
        convert(write(job, errors))
    assert len(caught.value.problems) == 1
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[1]", "[[]]", "5", "[{", "\0", "[{}]", "[{}, 5]", "a: 1\n---\nb: 1\n"]
)
def test_what_is_no_thesis_file_is_a_mistake_and_nothing_worse(tmp_path, text):
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(JobFileError):
        convert(tmp_path / "job.json")


def test_comments_cannot_break_out(write):
    path = write({"imageUrl": "x\nspec: {}\x85budget: none\u2028\x1b[31m"})
    [job] = read_jobs(convert_to_yaml(path))
    assert job == convert(path)[0].job


def test_the_committed_configurations_are_what_the_command_writes(monkeypatch):
    monkeypatch.chdir(ROOT)
    written = job_files.configurations()
    assert len(written) == 24
    committed = {path.name: path.read_text(encoding="utf-8") for path in Path("jobs/thesis").glob("*.yaml")}
    assert committed == written, "run: python -m coach_research.thesis.job_files"


def test_the_24_configurations_are_table_1_and_can_run_in_one_go():
    paths = sorted((ROOT / "jobs/thesis").glob("*.yaml"))
    jobs = load_jobs(paths, check_files=False)  # names differ over all files, or this raises
    assert len(jobs) == 2 * 2 * 2 * (1 + 2 + 3)
    for loaded in jobs:
        model, count, kind, scheduler = loaded.path.stem.split("-")
        spec = loaded.spec.spec
        assert Path(spec.model.file).stem == model
        assert sum(other.path == loaded.path for other in jobs) == int(count)
        assert spec.policy.allocation == (Allocation(2, 2) if kind == "static" else None)
        assert loaded.spec.metadata.labels[job_files.SCHEDULER_LABEL] == scheduler


def test_the_command_writes_into_the_given_folder(tmp_path):
    job_files.main([str(FILES), str(tmp_path / "out")])
    assert len(list((tmp_path / "out").iterdir())) == 24

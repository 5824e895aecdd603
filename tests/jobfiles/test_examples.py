"""The job files that come with Coach are right, and the reference of fields is that of the code."""

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_jobs, local_path
from scripts.generate import job_file_page as reference
from scripts.generate.crd import job_schema
from tests.jobfiles.reading import read_jobs

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("jobs/*.yaml"))
ALL = [*EXAMPLES, *sorted(ROOT.glob("jobs/thesis/*.yaml"))]
PAGE = (ROOT / reference.PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ALL, ids=[path.stem for path in ALL])
def test_an_example_is_a_job_file_and_a_custom_resource(path):
    load_jobs([path], check_files=False)
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        jsonschema.Draft4Validator(job_schema()).validate(document)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_names_a_model_of_this_repository(path):
    for loaded in load_jobs([path], check_files=False):
        model = local_path(loaded.spec.spec.model.file)
        assert model.is_relative_to(ROOT / "functions/models")
        assert model.is_file()


def test_examples_can_run_together():
    assert len(load_jobs(EXAMPLES, check_files=False)) == len(EXAMPLES)


def test_without_its_data_an_example_says_how_to_get_it(tmp_path):
    text = (ROOT / "jobs/lenet-digits.yaml").read_text(encoding="utf-8")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/lenet-digits.yaml").write_text(text.replace("../functions", f"{ROOT}/functions"))
    with pytest.raises(JobFileError) as caught:
        load_jobs([tmp_path / "jobs/lenet-digits.yaml"])
    [problem] = caught.value.problems
    assert (problem.field, problem.problem) == ("spec.data.uri", "no such file")
    assert "`make data`" in problem.right


def test_the_site_has_a_line_for_each_field_and_the_schema_is_that_of_the_code():
    made = reference.page(PAGE)
    for field in ("metadata.name", "spec.target.epochsInARow", "spec.program.stallTimeout", "spec.slurm.partition"):
        assert re.search(rf"^- `{re.escape(field)}` \(.+\): [A-Z]", made, re.MULTILINE), field
    assert "spec.testing" not in made, "for experiments alone"
    assert (ROOT / reference.SCHEMA).read_text(encoding="utf-8") == reference.schema(), (
        "run: python -m scripts.generate"
    )


def test_the_schema_for_editors_takes_all_job_files_and_no_wrong_one():
    editor = jsonschema.Draft202012Validator(json.loads((ROOT / reference.SCHEMA).read_text(encoding="utf-8")))
    for path in [*ALL, *ROOT.glob("examples/*/*/job.yaml")]:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            editor.validate(document)
    wrong = [error.json_path for error in editor.iter_errors(yaml.safe_load(MISTAKEN))]
    assert "$.spec.target.accuracy" in "".join(wrong) or "$.spec.target" in wrong


def test_the_gallery_has_every_job_file():
    text = (ROOT / "docs/reference/gallery.md").read_text(encoding="utf-8")
    files = [*EXAMPLES, *ROOT.glob("examples/*/*/job.yaml")]
    assert [path for path in files if f"({os.path.relpath(path, ROOT / 'docs/reference')})" not in text] == []


def test_the_page_needs_its_marks():
    with pytest.raises(ValueError, match="lacks the line"):
        reference.page("no marks")


def test_the_jobs_on_the_page_are_right():
    texts = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert [job.name for text in texts for job in read_jobs(text)] == ["lenet-digits", "best-digits"]


MISTAKEN = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: mine}
spec:
  model: {file: x.py}
  data: {format: digits8x8}
  target:
    accuracy: 97
  budget: {unlimited: true}

  batch_size: 5
"""


def test_the_mistakes_on_the_page_are_what_is_said():
    with pytest.raises(JobFileError) as caught:
        read_jobs(MISTAKEN, "jobs/mine.yaml")
    assert str(caught.value) in PAGE

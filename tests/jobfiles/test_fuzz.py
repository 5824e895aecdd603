"""Job files come from strangers: whatever stands in one, the answer is jobs or a list of mistakes."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coach.core.spec.job import TrainingJob
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_jobs
from coach.jobfiles.schema import lookup, tree
from scripts.generate.crd import job_schema
from tests.jobfiles.reading import read_jobs

pytestmark = pytest.mark.standard

#: Job files that `make fuzz` found.
FOUND = Path(__file__).parents[1] / "counterexamples/job-files"
GOOD = {
    "apiVersion": "coach.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "a"},
    "spec": {
        "model": {"file": "model.py"},
        "data": {"format": "digits8x8"},
        "target": {"loss": 0.35},
        "budget": {"amount": 5, "currency": "USD"},
    },
}


def answer(data):
    """The jobs, or None where there are mistakes; each of those is one printable line with a place."""
    try:
        return read_jobs(data, "f")
    except JobFileError as error:
        assert error.problems
        for problem in error.problems:
            line = str(problem)
            assert line.isprintable(), line
            assert len(line) < 1500
            assert problem.line >= 1 and problem.column >= 1
            assert problem.problem and problem.seen and problem.right
        return None


FRAGMENTS = [
    *("apiVersion: coach.dev/v1alpha1\n", "kind: TrainingJob\n", "metadata: {name: a}\n", "spec:\n"),
    *(
        "  model: ",
        "  data: ",
        "  target: {loss: 1}\n",
        "  budget: {unlimited: true}\n",
        "  budget:",
        "  workers: ",
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        ": ",
        "- ",
        "? ",
        ", ",
        "\n",
        "  ",
        "&a ",
        "*a",
        "!!str ",
        "!x ",
        "|",
        ">",
        "'",
        '"',
    ),
    *("#", "---\n", "...\n", "%YAML 1.2\n", "none", "5", "1e9", ".nan", "~", "<<: ", "\\x", "\\ud800", "é"),
    *("\t", "\r\n", "\u2028", "\x85", "<word>", "[key]"),
]


@given(st.text())
def test_any_text(text):
    answer(text)


@given(st.binary())
def test_any_bytes(data):
    answer(data)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join))
def test_any_words_of_yaml(text):
    answer(text)


def every_path(node, at=()):
    """Every path of keys that the schema names."""
    yield at
    for option in [node, *node.get("oneOf", [])]:
        for key, inner in option.get("properties", {}).items():
            yield from every_path(inner, (*at, key))


PATHS = sorted(set(every_path(tree())) - {()})
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["none", "flat", "static", "10m", "500m", "1Gi", "a", 1, 2, 0.5, "USD", "[key]", "<word>"]),
)
keys = st.one_of(st.text(max_size=10), st.sampled_from(sorted({path[-1] for path in PATHS})))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=10,
)


def plausible(path):
    """Values that the schema names for a field: its default, examples, words and bounds."""
    node = lookup(path)
    named = [*node.get("examples", []), *node.get("enum", []), node.get("default"), node.get("minimum")]
    named += [node.get("const"), node.get("maximum"), 1, 8, 0.5, "20ms", {}]
    return st.sampled_from([value for value in named if value is not None])


@st.composite
def documents(draw):
    """The good document with a few places of the schema put to a plausible value, or to anything."""
    document = copy.deepcopy(GOOD)
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=4)):
        place = document
        for key in path[:-1]:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[path[-1]] = copy.deepcopy(draw(plausible(path) if draw(st.integers(0, 9)) else anything))
    return document


@given(documents())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_in_any_field(document):
    text = yaml.safe_dump(document, allow_unicode=True)
    jobs = answer(text)
    if jobs is None:
        return
    [job] = jobs
    assert TrainingJob.from_json(json.loads(json.dumps(job.to_json(), allow_nan=False))) == job
    VALIDATOR.validate(document)  # what a person may write here may go to a cluster as well
    VALIDATOR.validate(job.to_json())


#: OpenAPI v3.0 is JSON Schema draft 4; but as for Kubernetes, 30.0 is a whole number.
VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft4Validator, type_checker=jsonschema.Draft6Validator.TYPE_CHECKER
)(job_schema())


@given(anything)
def test_any_document(value):
    answer(yaml.safe_dump(value))


@given(st.lists(st.sampled_from(["model.py", "../x", "/dev/null", "\u00e9", "a" * 300, ".", "~", "%2e"]), min_size=1))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_any_path(tmp_path, parts):
    document = copy.deepcopy(GOOD)
    document["spec"]["model"]["file"] = "/".join(parts)[:2000]
    document["spec"]["data"] = {"format": "npz", "uri": "/".join(reversed(parts))[:2000]}
    (tmp_path / "model.py").touch()
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    for options in ({}, {"check_files": False}, {"inside": [tmp_path]}):
        try:
            [loaded] = load_jobs([tmp_path / "job.yaml"], **options)
        except JobFileError as error:
            assert all(str(problem).isprintable() for problem in error.problems)
        else:
            assert loaded.spec.spec.model.file.startswith("file:///")


def test_files_that_a_search_found():
    for file in sorted(FOUND.glob("*")):
        answer(file.read_bytes())


def test_every_field_can_be_looked_up():
    for path in PATHS:
        assert lookup(path), path


@pytest.mark.parametrize("text", ["{}", "[]", "x", "{spec: {}}", "{spec: 5}", "{spec: {budget: {}}}", "{'': ''}"])
def test_small_documents_have_mistakes_and_nothing_worse(text):
    assert answer(text) is None

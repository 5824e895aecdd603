"""What a search tries: the texts of `--set`, and the jobs that follow from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.handler.search import samplers
from coach.handler.search.samplers import Tried
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.search_space import SEARCH, TRIAL, Choices, Range, Space, trial_job
from coach.jobfiles.training_search import load_search
from tests.core.lifecycle.faulty_cluster import spec, usd

NO_SPACE = Space({})
PROGRAM = {
    "apiVersion": "coach.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "train"},
    "spec": {
        "program": {"command": ["python", "train.py", "--lr", "{lr}"], "env": {"SEED": "{seed}"}},
        "target": {"loss": 0.3},
        "budget": usd(1.0),
    },
}


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("lr=0.01,1e-1", Choices((0.01, 0.1))),
        ("spec.optimizer.name = sgd, adam", Choices(("sgd", "adam"))),
        ("n=1,2", Choices((1, 2))),
        ("deterministic=true,false", Choices((True, False))),
        ('layers="64,64", 010, 1e-4,nan,1_000', Choices(("64,64", "010", 1e-4, "nan", "1_000"))),
        ('n=true,1,"1","a(b)"', Choices((True, 1, "1", "a(b)"))),
        ("lr=loguniform(1e-4, 1e-1)", Range(1e-4, 0.1, log=True)),
        ("x=uniform(-1,1)", Range(-1.0, 1.0)),
        ("n=randint(1,8)", Range(1.0, 8.0, whole=True)),
        ("n=lograndint(16,512)", Range(16.0, 512.0, log=True, whole=True)),
    ],
)
def test_values_and_ranges_are_read(text: str, domain: Choices | Range) -> None:
    assert list(Space.read([text]).parameters.values()) == [domain]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "nothing to search"),
        (["lr"], "KEY=VALUES"),
        (["lr="], "values such as"),
        (["lr=0.1,"], "values such as"),
        (["lr=0.1,0.1"], "twice"),
        (["n=1,1.0"], "twice"),
        (['layers="64,64'], 'a text with a comma in quotes: "64,64"'),
        (["lr=0.1", "lr=0.2"], "set twice"),
        (["lr=loguniform(0,1)"], "both above 0"),
        (["lr=uniform(1,0)"], "the smaller one first"),
        (["n=randint(1,2.5)"], "two whole numbers"),
        (["lr=normal(0,1)"], "values such as"),
        (["m=0.9 if name=sgd"], "comes before it: there is none"),
        (["name=sgd,adam", "m=0.9 if name=lamb"], "some of the values .*: name=sgd,adam"),
        (["lr=uniform(0,1)", "m=0.9 if lr=0.1"], "a list that comes before it"),
    ],
)
def test_what_is_wrong_is_said(texts: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Space.read(texts)


def test_lists_make_a_grid_and_seeds_are_its_last_parameter() -> None:
    grid = Space.read(["lr=0.1,0.2"], seeds=2).grid
    assert grid == [{"lr": lr, "seed": seed} for lr in (0.1, 0.2) for seed in (1, 2)]
    assert Space.read(["lr=uniform(0,1)"], seeds=2).grid is None


def test_a_set_of_values_has_a_place() -> None:
    space = Space.read(("lr=loguniform(1e-4,1)", "n=randint(1,9)", "name=sgd,adam,lamb", "batch=64,16,32 if name=sgd"))
    assert space.place({"lr": 0.01, "n": 5, "name": "sgd", "batch": 64}) == pytest.approx((0.5, 0.5, 1, 0, 0, 1))
    assert space.place({"lr": 1e-4, "n": 9, "name": "lamb"}) == pytest.approx((0, 1, 0, 0, 1, 0))


CONDITIONED = ("name=sgd,adam", "momentum=0.8,0.9 if name=sgd", "nesterov=true,false if momentum=0.9")


def test_a_parameter_with_a_condition_is_there_where_that_holds() -> None:
    space = Space.read(CONDITIONED)
    assert space.grid == [
        {"name": "sgd", "momentum": 0.8},
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        {"name": "sgd", "momentum": 0.9, "nesterov": False},
        {"name": "adam"},
    ]
    seen = [(key, value) for corner in space.corners() for key, value in corner.items()]
    assert set(seen) == {(key, value) for one in space.grid for key, value in one.items()}
    assert all(space.active(corner) == corner for corner in space.corners())


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_draw_a_parameter_only_where_its_condition_holds(sampler: str) -> None:
    space, tried = Space.read(("name=sgd,adam", "momentum=uniform(0.1,0.9) if name=sgd")), list[Tried]()
    for number in range(1, 25):
        values = samplers.propose(sampler, space, number, tried)
        assert values.keys() == ({"name", "momentum"} if values["name"] == "sgd" else {"name"})
        tried.append(Tried(values, (0.5,), 0.1 * number, "COMPLETE", {}))
    assert {one.parameters["name"] for one in tried} == {"sgd", "adam"}


def test_the_words_of_an_absent_parameter_are_left_out_of_the_command() -> None:
    document = {**PROGRAM, "spec": {**PROGRAM["spec"], "program": {
        "command": ["train", "--lr", "{lr}", "--momentum", "{m}", "--nesterov={n}"], "env": {"N": "{n}", "A": "b"},
    }}}  # fmt: skip
    job = trial_job(TrainingJob.from_json(document), "tune", 1, {"lr": 0.1}, Space.read(["lr=0.1,0.2", "m=1", "n=2"]))
    assert job.spec.program is not None
    assert job.spec.program.command == ("train", "--lr", "0.1") and job.spec.program.env == {"A": "b"}


@pytest.mark.parametrize(
    ("document", "parameters"),
    [
        (spec("digits", optimizer={"name": "sgd", "learningRate": 0.5}), {"optimizer.lr": 0.25, "seed": 3}),
        (PROGRAM, {"lr": 0.25, "seed": 3}),
    ],
)
def test_a_trial_is_an_ordinary_job_that_the_searchs_account_pays(
    document: dict[str, Any], parameters: dict[str, float | int]
) -> None:
    job = trial_job(TrainingJob.from_json(document), "tune", 7, parameters, NO_SPACE)
    assert (job.name, job.metadata.labels) == ("tune-7", {SEARCH: "tune", TRIAL: "7"})
    assert job.spec.budget.account == "tune" and not job.spec.stop_early
    if job.spec.program is None:
        assert job.spec.optimizer is not None
        assert (job.spec.optimizer.learning_rate, job.spec.seed) == (0.25, 3)
    else:
        assert job.spec.program.command[-1] == "0.25" and job.spec.program.env == {"SEED": "3"}


@pytest.mark.parametrize(
    ("document", "parameters", "words"),
    [
        (spec("digits"), {"optimizer.learningRate": -1.0}, "learningRate"),
        (spec("digits"), {"optimiser.lr": 0.1}, "optimiser"),
        (spec("digits"), {"seed.x": 1}, "seed is 0 in the job file, and has no fields"),
        (PROGRAM, {"rate": 0.1}, "the command has no {rate}"),
    ],
)
def test_a_parameter_that_a_job_cannot_have_is_refused(
    document: dict[str, Any], parameters: dict[str, float | int], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        trial_job(TrainingJob.from_json(document), "tune", 1, parameters, NO_SPACE)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"finalSeed": 2}, 'spec.finalSeed: no such field ("finalSeed") - did you mean finalSeeds?'),
        ({"colour": 2}, 'spec.colour: no such field ("colour") - one of template, parameters,'),
        (
            {"parallel": 0},
            "spec.parallel: too small (0) - a whole number from 1 to 1000",
        ),
    ],
)
def test_a_wrong_field_of_a_search_is_said_with_what_would_be_right(spec: dict[str, Any], words: str) -> None:
    whole = {"template": PROGRAM["spec"], "parameters": {"lr": "0.1,0.2"}, "budget": {"amount": 1, "currency": "USD"}}
    search = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingSearch", "metadata": {"name": "tune"}}
    with pytest.raises(JobFileError) as refused:
        load_search(Path("search.yaml"), yaml.safe_dump(search | {"spec": whole | spec}).encode())
    assert words in str(refused.value)


def test_what_is_no_document_is_no_search() -> None:
    with pytest.raises(JobFileError, match="a mapping with apiVersion, kind, metadata, spec"):
        load_search(Path("search.yaml"), b"no mapping")


def test_a_command_gets_a_listed_value_as_it_was_typed() -> None:
    texts = ["true", "false", "010", "1e-4", "64,64", "+3", "0.10", "-0"]
    space = Space.read(["lr=" + ",".join(f'"{text}"' if "," in text else text for text in texts), "seed=1"])
    grid = space.grid
    assert grid is not None
    document = TrainingJob.from_json(PROGRAM)
    jobs = [trial_job(document, "tune", 1, json.loads(json.dumps(one)), space) for one in grid]
    assert [job.spec.program.command[-1] for job in jobs if job.spec.program] == texts

"""`--set`, and the user's own defaults, in job files."""

from __future__ import annotations

from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.core.spec.job import JobSpec
from coach.jobfiles.changes import Changes
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_contents

JOB = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: a, labels: &same {team: vision}}
spec:
  model: {file: model.py}
  data: {format: digits8x8}
  target: {loss: 0.35}
  workers: {min: 1, max: 2}
  budget: {amount: 5}
"""


def changed(
    tmp_path: Path, *sets: str, defaults: str = "budget: {currency: USD}", job: str = JOB
) -> tuple[JobSpec, tuple[str, ...]]:
    """The job with these, and the defaults that it took."""
    file = tmp_path / "defaults.yaml"
    file.write_text(defaults)
    changes = Changes.read(sets, file)
    loaded = load_contents([(Path("f"), job.encode())], check_files=False, changes=changes)[0]
    return loaded.spec.spec, loaded.defaults


def test_a_field_is_set_to_a_value_of_yaml_and_the_others_stay(tmp_path: Path) -> None:
    sets = ("workers.max=8", "optimizer.lr=1e-3", "spec.stopEarly=false", "target={accuracy: 0.9}")
    spec, _ = changed(tmp_path, *sets)
    assert (spec.workers.min, spec.workers.max, spec.stop_early) == (1, 8, False)
    assert spec.optimizer is not None and spec.optimizer.learning_rate == 0.001
    assert spec.target is not None and (spec.target.name, spec.target.number) == ("accuracy", 0.9)


def test_an_alias_is_changed_in_one_place_alone(tmp_path: Path) -> None:
    job = JOB.replace("workers: {", "workers: &w {") + "  servers: *w\n"
    spec, _ = changed(tmp_path, "servers.max=3", job=job)
    assert (spec.workers.max, spec.servers.max) == (2, 3)


@pytest.mark.parametrize("text", ["seed", "=3", "seed=", "a b=3", "seed=[1", "seed=1\n---\n2"])
def test_what_is_no_field_and_value_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"a field and its value, such as optimizer.learningRate=0.1"):
        Changes.read((text,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeed=3", '--set:1:1 spec.seeed: no such field ("seeed") - did you mean seed?'),
        ("workers.max=many", '--set:1:1 spec.workers.max: not a whole number ("many") - a whole number from 1 to 1024'),
        ("workers.max.most=3", "--set spec.workers.max.most: max is 2 in the job file, and has no fields"),
    ],
)
def test_a_wrong_value_is_a_mistake_of_the_option_not_of_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        changed(tmp_path, text)
    assert str(caught.value) == message


def test_defaults_fill_in_what_the_file_leaves_out(tmp_path: Path) -> None:
    defaults = "prices: flat\nbudget: {amount: 1, currency: USD}\nworkers: {max: 9}\n"
    spec, taken = changed(tmp_path, defaults=defaults)
    assert taken == ("prices", "budget.currency")
    assert (spec.prices, spec.budget.amount, spec.budget.currency, spec.workers.max) == ("flat", 5, "USD", 2)
    spec, taken = changed(tmp_path, defaults=defaults, job=JOB.replace("  budget: {amount: 5}\n", ""))
    assert (taken, spec.budget.amount) == (("prices", "budget"), 1)
    spec, taken = changed(tmp_path, defaults=defaults, job=JOB.replace("amount: 5", "unlimited: true"))
    assert (taken, spec.budget.unlimited) == (("prices",), True)


def test_the_currency_of_budgets_is_no_budget(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"spec.budget: required \(not there\)"):
        changed(tmp_path, job=JOB.replace("  budget: {amount: 5}\n", ""))


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ("\nprizes: flat\n", '2:1: no such field ("prizes") - fields of a job\'s spec, such as prices and budget'),
        ("- a\n", "1:1: not a mapping (a list of 1) - fields of a job's spec, such as prices and budget"),
        ("\nseed: x\n", '2:1 spec.seed: not a whole number ("x") - a whole number from 0 to 2147483647'),
    ],
)
def test_a_mistake_in_the_defaults_has_its_line_there(tmp_path: Path, defaults: str, message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        changed(tmp_path, "budget.currency=USD", defaults=defaults)
    assert str(caught.value) == f"{tmp_path / 'defaults.yaml'}:{message}"

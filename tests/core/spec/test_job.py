"""What the job file's type promises: nothing coerced, all bounded, the journal gives back what went in."""

import copy
import json
import math

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import Allocation, Resources, Role
from coach.core.money import PRICE_BOOKS
from coach.core.spec import quantities
from coach.core.spec.job import Limits, TrainingJob
from coach.core.spec.resources import PolicyName
from coach.core.spec.training import DataFormat, Framework, JobClass, Mode, Target

SMALLEST = {
    "apiVersion": "coach.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "a"},
    "spec": {
        "model": {"file": "lenet.py"},
        "data": {"format": "digits8x8"},
        "target": {"loss": 0.35},
        "budget": {"amount": 5, "currency": "USD"},
    },
}


def job(**spec):
    """The smallest job with these keys of `spec` set; a key with None is taken away."""
    document = copy.deepcopy(SMALLEST)
    document["spec"].update(spec)
    document["spec"] = {key: value for key, value in document["spec"].items() if value is not None}
    return TrainingJob.from_json(document)


def refusals(**spec):
    """Where and why that job is refused."""
    with pytest.raises(pydantic.ValidationError) as caught:
        job(**spec)
    return {".".join(map(str, error["loc"][1:])): error["msg"] for error in caught.value.errors()}


def test_defaults_are_those_of_the_documentation():
    spec = job().spec
    assert spec.limits == Limits(Allocation(1, 1), Allocation(4, 4))
    assert (spec.batch_size, spec.seed, spec.priority) == (64, 0, 0)
    assert (spec.mode, spec.job_class, spec.policy.name) == (
        Mode.SYNC,
        JobClass.BEST_EFFORT,
        PolicyName.COACH,
    )
    assert (spec.mini_epoch.min_seconds, spec.mini_epoch.max_seconds, spec.mini_epoch.max_fraction) == (
        20,
        40,
        0.4,
    )
    assert (spec.grace_period, spec.time_limit, spec.max_epochs) == (30, None, None)
    assert (spec.target.epochs_in_a_row, spec.optimizer, spec.checkpoint.uri) == (3, None, None)
    assert spec.price_book is PRICE_BOOKS["cloud-functions"]


def test_default_resources_of_two_by_two_fit_on_two_cores():
    assert job().spec.resources.total(Allocation(2, 2)).fits(Resources(2.0, 4.0))


def test_resources_are_cores_gib_and_devices():
    spec = job(resources={"worker": {"cpu": 2, "memory": "1536Mi", "gpu": 1}}).spec
    assert spec.resources.of(Role.WORKER) == Resources(2.0, 1.5, 1.0)
    assert spec.resources.of(Role.SCHEDULER) == Resources(0.1, 0.5)


def test_a_budget_is_exact_money_or_unlimited():
    assert job(budget={"amount": 0.1, "currency": "USD"}).spec.budget_money == 100_000_000
    assert job(budget={"unlimited": True}).spec.budget_money is None
    assert job(budget={"account": "team-a"}).spec.budget_money is None


def test_the_accepted_chance_of_running_out_is_five_per_cent_unless_it_is_said():
    money = {"amount": 1, "currency": "USD"}
    assert job(budget=money).spec.budget.chance == 0.05
    assert job(budget=money).to_json()["spec"]["budget"] == money | {"mustSuffice": False}
    assert job(budget={**money, "chanceOfRunningOut": 0.2}).spec.budget.chance == 0.2


def test_prices_may_be_ones_own():
    prices = {"name": "ours", "currency": "EUR", "vcpuSecond": 1e-5, "gibSecond": 1e-6, "invocation": 0}
    book = job(prices=prices, budget={"amount": 1, "currency": "EUR"}).spec.price_book
    assert (book.name, book.currency, book.vcpu_second, book.gpu_second) == ("ours", "EUR", 1e-5, 0.0)


def test_a_static_policy_leaves_one_allocation():
    spec = job(policy={"name": "static", "workers": 2, "servers": 3}).spec
    assert spec.limits == Limits(Allocation(2, 3), Allocation(2, 3))
    assert Allocation(2, 3).within(*spec.limits) and not Allocation(3, 3).within(*spec.limits)


def test_a_pytorch_job_has_no_servers():
    spec = job(framework="pytorch").spec
    assert spec.framework is Framework.PYTORCH
    assert spec.limits == Limits(Allocation(1, 0), Allocation(4, 0))
    assert job(framework="pytorch", servers={"max": 0}).spec == spec
    static = job(framework="pytorch", policy={"name": "static", "workers": 2}).spec
    assert static.limits == Limits(Allocation(2, 0), Allocation(2, 0))


def test_a_pytorch_job_with_servers_trains_by_them():
    spec = job(framework="pytorch", servers={"max": 4}).spec
    assert spec.limits == Limits(Allocation(1, 1), Allocation(4, 4))
    static = job(framework="pytorch", servers={"max": 2}, policy={"name": "static", "workers": 2, "servers": 2}).spec
    assert static.limits == Limits(Allocation(2, 2), Allocation(2, 2))


def test_a_job_that_says_no_framework_is_mxnets():
    assert job().spec.framework is Framework.MXNET


def test_the_model_file_may_name_what_makes_the_network():
    assert job(model={"file": "lenet.py"}).spec.model.net == "net"
    long = job(model={"file": "lenet.py", "net": "LeNet"}).spec
    assert job(model={"file": "lenet.py:LeNet"}).spec == long
    assert job(model={"file": "lenet.py:LeNet", "net": "LeNet"}).spec == long
    assert job(model={"file": "s3://b/lenet.py:LeNet"}).spec.model.file == "s3://b/lenet.py"
    assert job(model={"file": "a:b.py"}).spec.model.file == "a:b.py"


def test_pytorchs_optimizer_is_written_as_in_pytorch():
    schedule = {"name": "MultiStepLR", "milestones": [2000, 4000], "gamma": 0.1}
    optimizer = {"name": "AdamW", "lr": 0.001, "betas": [0.9, 0.999], "schedule": schedule}
    found = job(framework="pytorch", optimizer=optimizer).spec.optimizer
    assert found.arguments == {"learning_rate": 0.001, "betas": (0.9, 0.999)}
    assert (found.schedule.name, found.schedule.arguments) == (
        "MultiStepLR",
        {"milestones": (2000, 4000), "gamma": 0.1},
    )


def test_optimizer_arguments_are_mxnets_own():
    spec = job(optimizer={"learningRate": 0.1, "momentum": 0.9, "lazy_update": True}).spec
    assert spec.optimizer.arguments == {"learning_rate": 0.1, "momentum": 0.9, "lazy_update": True}


@pytest.mark.parametrize(
    ("target", "value", "reached"),
    [
        ({"loss": 0.35}, 0.35, True),
        ({"loss": 0.35}, 0.3501, False),
        ({"loss": 0.35}, math.nan, False),
        ({"accuracy": 0.97}, 0.97, True),
        ({"accuracy": 0.97}, 0.9699, False),
        ({"accuracy": 0.97}, None, False),
        ({"metric": "val_loss", "value": 0.3}, 0.3, True),
        ({"metric": "val_loss", "value": 0.3}, 0.31, False),
        ({"metric": "F1", "value": 0.9}, 0.9, True),
        ({"metric": "eval/reward", "value": -200}, -201.0, False),
        ({"metric": "x", "value": 3, "goal": "maximize"}, 3.5, True),
    ],
)
def test_a_target_is_reached_at_its_bound(target, value, reached):
    assert Target.model_validate(target).reached(value) is reached


REFUSED = [
    ({"target": {}}, "target", "one of loss, accuracy and metric"),
    ({"target": {"loss": 1, "accuracy": 0.5}}, "target", "only one of loss, accuracy and metric"),
    ({"target": {"accuracy": 97}}, "target.accuracy", "less than or equal to 1"),
    ({"target": {"loss": 0}}, "target.loss", "greater than 0"),
    ({"target": {"loss": math.inf}}, "target.loss", "finite"),
    ({"target": {"loss": True}}, "target.loss", "number"),
    ({"target": {"loss": "0.35"}}, "target.loss", "number"),
    ({"budget": None}, "budget", "required"),
    ({"budget": "nothing"}, "budget", "Budget"),
    ({"budget": {"amount": -1, "currency": "USD"}}, "budget.amount", "greater"),
    ({"budget": {}}, "budget", "no amount - amount and currency, an account, or unlimited: true alone"),
    ({"budget": {"amount": 1}}, "budget", "currency: required"),
    ({"budget": {"currency": "USD"}}, "budget", "amount: required"),
    ({"budget": {"amount": 1, "currency": "USD", "unlimited": True}}, "budget", "both unlimited and amount"),
    ({"budget": {"currency": "USD", "unlimited": True}}, "budget", "both unlimited and currency"),
    ({"budget": {"account": "team-a", "unlimited": True}}, "budget", "both unlimited and account"),
    ({"budget": {"account": "Team A"}}, "budget.account", "pattern"),
    ({"budget": {"account": "team-a", "amount": 1}}, "budget", "currency: required"),
    (
        {"budget": {"unlimited": True, "chanceOfRunningOut": 0.1}},
        "budget",
        "no meaning for an unlimited budget",
    ),
    (
        {"budget": {"amount": 1, "currency": "USD", "chanceOfRunningOut": 0.6}},
        "budget.chanceOfRunningOut",
        "less than or equal to 0.5",
    ),
    (
        {"budget": {"amount": 1, "currency": "USD", "chanceOfRunningOut": 0}},
        "budget.chanceOfRunningOut",
        "greater than 0",
    ),
    ({"budget": {"unlimited": False}}, "budget.unlimited", "not true"),
    ({"budget": {"unlimited": 1}}, "budget.unlimited", "boolean"),
    ({"suspend": "true"}, "suspend", "boolean"),
    ({"budget": {"amount": 1, "currency": "EUR"}}, "", "not the currency of the price book cloud-functions"),
    ({"batchSize": 64.0}, "batchSize", "integer"),
    ({"batchSize": 2}, "", "workers.max: more than batchSize, which is 2"),
    ({"seed": True}, "seed", "integer"),
    ({"seed": 10**400}, "seed", "2147483647"),
    ({"workers": {"min": 3, "max": 2}}, "workers", "more than max, which is 2"),
    ({"miniEpoch": {"minSeconds": 40}}, "miniEpoch", "not below maxSeconds"),
    ({"timeLimit": "soon"}, "timeLimit", "not a duration"),
    ({"timeLimit": 1.5}, "timeLimit", "1500ms"),
    ({"timeLimit": 0}, "timeLimit", "greater than 0"),
    ({"timeLimit": True}, "timeLimit", "number"),
    ({"resources": {"worker": {"cpu": 0.5, "memory": "1Gi"}}}, "resources.worker.cpu", "500m"),
    ({"resources": {"worker": {"cpu": "0m", "memory": "1Gi"}}}, "resources.worker.cpu", "more than 0"),
    ({"resources": {"worker": {"cpu": 1, "memory": "1Mi"}}}, "resources.worker.memory", "16Mi"),
    ({"resources": {"worker": {"cpu": 1, "memory": "1 GB"}}}, "resources.worker.memory", "pattern"),
    ({"model": {"file": "ftp://host/x.py"}}, "model.file", "no such kind of URI: ftp://"),
    ({"model": {"file": "s3:///"}}, "model.file", "without a path"),
    ({"model": {"file": "x\0.py"}}, "model.file", "pattern"),
    ({"data": {"format": "idx"}}, "data", "uri: required"),
    ({"data": {"format": "digits8x8", "uri": "x"}}, "data", "uri: has no meaning for digits8x8"),
    ({"policy": {"name": "static", "workers": 1}}, "policy", "servers: required"),
    ({"policy": {"workers": 1}}, "policy", "workers: has no meaning for the policy coach"),
    (
        {"policy": {"name": "static", "workers": 9, "servers": 1}},
        "",
        "policy.workers: outside the job's limits",
    ),
    ({"optimizer": {"learningRate": 0.1, "x y": 1}}, "optimizer.x y", "pattern"),
    ({"optimizer": {"learningRate": 0.1, "wd": {"a": 1}}}, "optimizer.wd", "not one plain value"),
    ({"optimizer": {"learningRate": 0.1, "wd": [1] * 5}}, "optimizer.wd", "not a list of numbers"),
    ({"optimizer": {"learningRate": 0.1, "wd": [True]}}, "optimizer.wd", "not a list of numbers"),
    ({"optimizer": {"learningRate": 0.1, "wd": [math.inf]}}, "optimizer.wd", "not a finite number"),
    ({"optimizer": {"learningRate": 0.1, "wd": math.nan}}, "optimizer.wd", "not a finite number"),
    ({"optimizer": {"learningRate": 0.1, "learning_rate": 1}}, "optimizer", "said twice"),
    ({"optimizer": {"learningRate": 0.1, "lr": 0.1}}, "optimizer", "lr: said twice"),
    ({"optimizer": {"momentum": 0.1}}, "optimizer.learningRate", "required"),
    ({"optimizer": {"lr": 0}}, "optimizer.lr", "greater than 0"),
    (
        {"optimizer": {"lr": 1, "schedule": {"name": "StepLR"}}},
        "",
        "optimizer.schedule: has no meaning for an",
    ),
    ({"framework": "torch"}, "framework", "'mxnet', 'pytorch' or 'any'"),
    (
        {"framework": "pytorch", "servers": {"max": 2}, "optimizer": {"name": "Rprop", "lr": 0.1}},
        "",
        "optimizer.name: does not run on elastic servers",
    ),
    (
        {"framework": "pytorch", "policy": {"name": "static", "workers": 1, "servers": 1}},
        "",
        "policy.servers: a PyTorch job without `servers` trains by all-reduce",
    ),
    ({"framework": "pytorch", "mode": "async"}, "", "mode: workers of a PyTorch job step together"),
    ({"servers": {"min": 0}}, "", "servers.min: too small"),
    ({"servers": {"min": 0, "max": 0}}, "", "servers.min: too small"),
    ({"model": {"file": "x.py:A", "net": "B"}}, "model", "net: not A, which file names"),
    ({"model": {"file": "x.py", "net": "a.b"}}, "model.net", "pattern"),
    ({"prices": "free"}, "prices.<word>", "flat"),
    (
        {"prices": {"name": "flat", "currency": "USD", "vcpuSecond": 0, "gibSecond": 0, "invocation": 0}},
        "prices.<object>",
        "the name of a shipped price book",
    ),
    ({"batch_size": 3}, "batch_size", "not permitted"),
    ({"whatever": 3}, "whatever", "not permitted"),
]


@pytest.mark.parametrize(("spec", "where", "why"), REFUSED, ids=[f"{where}-{why}" for _, where, why in REFUSED])
def test_a_mistake_is_refused_where_it_is(spec, where, why):
    found = refusals(**spec)
    assert list(found) == [where]
    assert why in found[where]


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a.b", "a" * 41, "a\n", "ä", 5, None])
def test_a_name_is_a_dns_label(name):
    with pytest.raises(pydantic.ValidationError):
        TrainingJob.from_json({**SMALLEST, "metadata": {"name": name}})


def test_a_job_cannot_be_changed():
    with pytest.raises(pydantic.ValidationError):
        job().spec.seed = 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("1500ms", 1.5), ("0.5s", 0.5), ("1d", 86400)],
)
def test_durations_are_seconds(text, seconds):
    assert quantities.seconds(text) == seconds
    assert quantities.seconds(quantities.duration(seconds)) == seconds


@given(st.integers(0, 365 * 86400 * 1000))
def test_every_duration_comes_back_to_the_millisecond(milliseconds):
    assert quantities.seconds(quantities.duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize(
    ("text", "gib"), [("1Gi", 1), ("512Mi", 0.5), ("1G", 1e9 / 2**30), (str(2**29), 0.5), ("0.5Ti", 512)]
)
def test_memory_is_gib(text, gib):
    assert quantities.gib(text) == gib


counts = st.integers(1, 8)
amounts = st.floats(1e-6, 1e9)


@st.composite
def specs(draw):
    """Any valid spec, as the dictionary that a YAML file would give."""
    low, high = sorted((draw(counts), draw(counts)))
    spec = {
        "model": {"file": draw(st.sampled_from(["x.py", "file:///m/x.py:Net", "s3://b/x.py"]))},
        "data": draw(
            st.sampled_from([{"format": "digits8x8"}, {"format": "custom"}])
            | st.sampled_from([{"format": f.value, "uri": "s3://b/d"} for f in DataFormat if f.needs_uri])
        ),
        "target": draw(
            st.one_of(
                st.builds(lambda v: {"loss": v}, st.floats(1e-9, 1e9)),
                st.builds(lambda v: {"accuracy": v}, st.floats(1e-9, 1)),
            )
        ),
        "budget": draw(
            st.one_of(st.just({"unlimited": True}), st.builds(lambda v: {"amount": v, "currency": "USD"}, amounts))
        ),
        "workers": {"min": low, "max": high},
        "servers": {"min": low, "max": high},
        "batchSize": draw(st.integers(8, 10**6)),
        "seed": draw(st.integers(0, 2**31 - 1)),
        "timeLimit": draw(st.one_of(st.integers(1, 10**6), st.sampled_from(["10m", "1h30m", "20ms", "0.25s"]))),
        "gracePeriod": draw(st.integers(0, 10**6)),
        "framework": draw(st.sampled_from(["mxnet", "pytorch"])),
        "optimizer": {
            draw(st.sampled_from(["learningRate", "lr"])): draw(st.floats(1e-9, 1000)),
            **draw(
                st.dictionaries(
                    st.sampled_from(["momentum", "wd", "lazy_update", "beta1"]),
                    st.one_of(
                        st.booleans(),
                        st.integers(-9, 9),
                        st.floats(-1e9, 1e9),
                        st.just("x"),
                        st.just([0.9, 1]),
                    ),
                )
            ),
        },
        "policy": draw(st.one_of(st.just({}), st.just({"name": "static", "workers": low, "servers": high}))),
        "testing": {"errorFactors": {"speed": draw(st.floats(0.1, 10))}},
    }
    optional = draw(st.sets(st.sampled_from(["timeLimit", "gracePeriod", "optimizer", "policy", "testing"])))
    if spec["framework"] == "pytorch":
        del spec["servers"]
        spec["policy"].pop("servers", None)
        spec["optimizer"]["schedule"] = {"name": "CosineAnnealingLR", "T_max": draw(st.integers(1, 9))}
    return {key: value for key, value in spec.items() if key not in optional}


@given(specs())
def test_every_job_comes_back_from_the_journal_equal(spec):
    before = TrainingJob.from_json({**SMALLEST, "spec": spec})
    text = json.dumps(before.to_json(), allow_nan=False)
    after = TrainingJob.from_json(json.loads(text))
    assert after == before
    assert json.dumps(after.to_json(), allow_nan=False) == text


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)),
    max_leaves=8,
)
paths = st.sampled_from(
    [("spec", key) for key in TrainingJob.from_json(SMALLEST).to_json()["spec"]]
    + [("spec", "optimizer"), ("spec", "timeLimit"), ("spec", "target", "loss"), ("metadata", "labels")]
    + [("spec", "resources", "worker", "cpu"), ("spec", "optimizer", "momentum"), ("metadata", "name")]
)


@given(paths, anything)
def test_any_value_of_a_field_gives_a_job_or_a_list_of_mistakes(path, value):
    document = copy.deepcopy(SMALLEST)
    place = document
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    try:
        found = TrainingJob.from_json(document)
    except pydantic.ValidationError:
        return
    assert TrainingJob.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found

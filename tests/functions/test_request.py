"""A start message is checked field by field, and all its faults are reported at once."""

import pytest
from training import request
from training.errors import TrainingError

GOOD = {
    "op": "start",
    "epoch": "e1",
    "group": "g1",
    "key": "the-key-of-the-group",
    "role": "worker",
    "rank": 0,
    "workers": 2,
    "servers": 1,
    "root": "127.0.0.1:9100",
    "host": "127.0.0.2",
    "deadline": 30,
    "model": {"uri": "model.py"},
    "data": {"uri": "folder", "format": "idx"},
    "batch_size": 64,
    "samples": 640,
}


def faults(**changes: object) -> str:
    body = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    with pytest.raises(TrainingError) as caught:
        request.parse(body, "worker")
    assert caught.value.reason == "BadRequest"
    return caught.value.message


def test_a_good_message_is_taken_with_its_defaults() -> None:
    asked = request.parse(GOOD, "worker")
    assert (asked.mode, asked.threads, asked.evaluate) == ("sync", 1, True)
    assert asked.root_address == ("127.0.0.1", 9100)
    assert request.StartRequest(**asked.as_dict()) == asked


@pytest.mark.parametrize("field", ["epoch", "group", "key", "role", "rank", "workers", "root", "host", "deadline"])
def test_a_missing_field_is_named(field: str) -> None:
    assert f"{field} is missing" in faults(**{field: ...})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", ""),
        ("epoch", 7),
        ("rank", True),
        ("rank", -1),
        ("rank", 0.0),
        ("workers", 0),
        ("servers", "1"),
        ("root", "127.0.0.1"),
        ("root", "127.0.0.1:80"),
        ("root", "127.0.0.1:65535"),
        ("root", ":9100"),
        ("root", 9100),
        ("deadline", 0),
        ("deadline", float("inf")),
        ("deadline", float("nan")),
        ("deadline", True),
        ("model", "model.py"),
        ("model", {"uri": "m.py", "sha": "0"}),
        ("model", {"uri": "m.py", "sha256": "xyz"}),
        ("data", {"uri": "x", "format": "tfrecord"}),
        ("data", {"uri": "x", "format": "idx", "size": 0}),
        ("batch_size", -1),
        ("optimizer", {"learning_rate": 1}),
        ("optimizer", "sgd"),
        ("seed", 2**31),
        ("mode", "both"),
        ("position", -1),
        ("samples", -1),
        ("fraction", 0),
        ("seconds", -3),
        ("weights_in", 5),
        ("obsolete", "file:///old.ckpt"),
        ("obsolete", [""]),
        ("memory", 0),
        ("threads", 0),
        ("evaluate", 1),
        ("elastic", 1),
        ("model_seconds", 0),
    ],
)
def test_a_field_of_another_kind_is_named(field: str, value: object) -> None:
    assert faults(**{field: value}).startswith(field)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampels": 5}, "sampels is not a known field"),
        ({"rank": 2}, "rank is 2, but the group has 2 of role worker"),
        ({"role": "server"}, "role is server, but this function is a worker"),
        ({"model": None}, "needs model and data"),
        ({"data": {"format": "idx"}}, "data uri is missing"),
        ({"batch_size": 1}, "less than one sample"),
        ({"seconds": 3.0}, "one worker only"),
        ({"position": 64}, "weights_in"),
        ({"samples": None}, "either samples or fraction"),
        ({"fraction": 0.5}, "either samples or fraction"),
        ({"samples": None, "fraction": 1.5}, "more than the whole data set"),
    ],
)
def test_fields_that_do_not_agree_are_explained(changes: dict, words: str) -> None:
    assert words in faults(**changes)


def test_all_faults_are_reported_at_once() -> None:
    message = faults(rank=-1, root="x", deadline=None, weights="w")
    assert all(name in message for name in ("rank", "root", "deadline", "weights"))


def test_servers_and_schedulers_need_nothing_of_a_workers() -> None:
    for role in ("server", "scheduler"):
        body = {
            key: GOOD[key]
            for key in ("epoch", "group", "key", "rank", "workers", "servers", "root", "host", "deadline")
        }
        assert request.parse({**body, "role": role}, role).role == role


def test_an_elastic_worker_may_come_later_than_those_that_found_the_group() -> None:
    later = {**GOOD, "servers": 0, "rank": 5, "elastic": True}
    assert request.parse(later, "worker").rank == 5
    assert "workers" not in request.parse(later, "worker").group_part()
    with pytest.raises(TrainingError, match="rank is 5"):
        request.parse({**later, "elastic": False}, "worker")
    with pytest.raises(TrainingError, match="mode is async, and must be sync"):
        request.parse({**later, "mode": "async"}, "worker")


HERE = ["file:///a%20b#c/model.py", "model.py", "s3://bucket/model.py", "gs://bucket/a#b/model.py"]
ELSEWHERE = [
    "http://127.0.0.1/model.py",
    "https://x/m.py",
    "HTTP://x/m",
    "ftp://x/m",
    "az://x/m",
    "memory://x",
    "data://m",
]


@pytest.mark.parametrize(("uri", "taken"), [*((one, True) for one in HERE), *((one, False) for one in ELSEWHERE)])
def test_files_are_of_this_machine_or_of_an_object_store(uri: str, taken: bool) -> None:
    for changes in (
        {"model": {"uri": uri}},
        {"data": {"uri": uri, "format": "idx"}},
        {"weights_in": uri},
        {"weights_out": uri},
        {"obsolete": [uri]},
    ):
        if taken:
            assert request.parse(GOOD | changes, "worker")
        else:
            assert "must be a path, or of file, s3, gs" in faults(**changes)

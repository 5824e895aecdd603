"""A start message has the fields that the function knows, and all that is wrong with them is reported at once."""

from pathlib import Path

import pytest
from training import request, storage
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
    ("changes", "words"),
    [
        ({"epoch": 7}, "epoch is 7, and must be str"),
        ({"rank": 0.0}, "rank is 0.0, and must be int"),
        ({"deadline": None}, "deadline is None, and must be float or int"),
        ({"model": "model.py"}, "model is 'model.py', and must be dict or NoneType"),
        ({"obsolete": "file:///old.ckpt"}, "obsolete is 'file:///old.ckpt', and must be list"),
        ({"sampels": 5}, "sampels is not a known field"),
        ({"role": "server"}, "role is 'server', but this function is a worker"),
    ],
)
def test_what_is_wrong_is_named(changes: dict, words: str) -> None:
    assert faults(**changes) == words


def test_all_faults_are_reported_at_once() -> None:
    message = faults(rank=..., root=5, deadline=None, weights="w")
    assert all(name in message for name in ("rank", "root", "deadline", "weights"))


def test_servers_and_schedulers_need_nothing_of_a_workers() -> None:
    for role in ("server", "scheduler"):
        body = {
            key: GOOD[key]
            for key in ("epoch", "group", "key", "rank", "workers", "servers", "root", "host", "deadline")
        }
        assert request.parse({**body, "role": role}, role).role == role


def test_what_may_change_of_an_elastic_group_is_no_part_of_it() -> None:
    assert "workers" not in request.parse({**GOOD, "elastic": True}, "worker").group_part()
    assert "workers" in request.parse(GOOD, "worker").group_part()


@pytest.mark.parametrize(
    ("value", "good"),
    [([0, 2], True), ([], False), ([1, 1], False), ([-1], False), ([True], False), (["0"], False), (0, False)],
)
def test_members_are_named_by_ranks_each_once(value: object, good: bool) -> None:
    assert request.ranks(value) is good


def test_files_are_of_this_machine_or_of_an_object_store() -> None:
    for uri in ("http://127.0.0.1/m.py", "HTTP://x/m", "ftp://x/m", "az://x/m", "memory://x", "data://m"):
        with pytest.raises(TrainingError, match="must be a path, or of file, s3, gs"):
            storage.local_path(uri)
    paths = ["file:///a%20b#c/model.py", "model.py", "s3://bucket/model.py"]
    assert [storage.local_path(uri) for uri in paths] == [Path("/a%20b#c/model.py"), Path("model.py"), None]

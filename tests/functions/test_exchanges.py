"""One contract for all exchanges: whatever happens to the group, it trains what one process trains.

ps-lite and elastic servers with MXNet, all-reduce and elastic servers with PyTorch; the same seed, the same samples.
Servers add in the order of the workers, so a change of servers alters no bit. Another number of workers adds float32
numbers in another order, which is what CLOSE allows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.functions.hosting import ROOT, Gang, Template
from tests.functions.messages import epoch, model_file
from tests.functions.pytorch.conftest import pytorch_template, warm_pytorch_gang  # noqa: F401 - fixtures
from tests.functions.pytorch.test_training import MLP

CLOSE = 1e-4
GLUON = """
    from mxnet import gluon

    def net():
        layers = gluon.nn.HybridSequential()
        layers.add(gluon.nn.Flatten(), gluon.nn.Dense(32, activation="relu"), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""


class Exchange(NamedTuple):
    """How gradients become weights."""

    gang: str
    text: str
    elastic: bool
    #: (workers, servers) of one process, then of a history.
    alone: tuple[int, int]
    history: list[tuple[int, int]]


SERVERS = [(1, 1), (2, 2), (1, 2)]
EXCHANGES = {
    "ps-lite": Exchange("warm_gang", GLUON, False, (1, 1), SERVERS),
    "elastic servers, MXNet": Exchange("warm_gang", GLUON, True, (1, 1), SERVERS),
    "elastic servers, PyTorch": Exchange("warm_pytorch_gang", MLP, True, (1, 0), SERVERS),
    "all-reduce and servers": Exchange("warm_pytorch_gang", MLP, True, (1, 0), [(2, 0), (2, 1), (1, 0)]),
    "all-reduce": Exchange("warm_pytorch_gang", MLP, True, (1, 0), [(1, 0), (3, 0), (2, 0)]),
}


def losses(
    gang: Gang, folder: Path, exchange: Exchange, history: list[tuple[int, int]], look: Callable[[], None] = bool
) -> list[float]:
    """Of one epoch after the other, by these workers and servers; members of an elastic group stay what they are.

    `look` is called after each epoch, the group still there.
    """
    found, report, before = [], None, None
    for workers, servers in history:
        # Members of ps-lite change with the group, and so does what an exchange is: servers, or all-reduce.
        if before is not None and not exchange.elastic:
            gang.stop()
        if before is not None and (not exchange.elastic or (before == 0) != (servers == 0)):
            gang.fresh_group()
        given = {"optimizer": {"name": "adam", "learning_rate": 0.002}, "clip": {"norm": 0.5, "value": None}}
        data = {"uri": str(ROOT / ".data/mnist-digits"), "format": "digits-json", "size": 1440}
        model = model_file(folder / "model.py", exchange.text)
        start = epoch(folder, report, model=model, data=data, samples=320, elastic=exchange.elastic, **given)
        members = {"members": list(range(workers))} | ({"server_members": list(range(servers))} if servers else {})
        report = gang.epoch(workers, servers, scheduler=members if exchange.elastic else {}, **start)
        found += [report["loss"], report["train_loss"]]
        look()
        before = servers
    gang.stop()
    gang.fresh_group()
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.pytorch if "pytorch" in of.gang else pytest.mark.mxnet)
     for name, of in EXCHANGES.items()],
)  # fmt: skip
def test_any_history_trains_what_one_process_trains(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    exchange = EXCHANGES[name]
    gang = request.getfixturevalue(exchange.gang)
    gang.fresh_group()
    alone = losses(gang, tmp_path, exchange, [exchange.alone] * len(exchange.history))
    assert losses(gang, tmp_path, exchange, exchange.history) == pytest.approx(alone, rel=CLOSE)
    if exchange.elastic and exchange.history is SERVERS:
        one, others = [(1, 1)] * 2, [(1, 2), (1, 1)]
        assert losses(gang, tmp_path, exchange, others) == losses(gang, tmp_path, exchange, one)


@pytest.mark.mxnet
def test_shared_memory_alters_no_bit_of_what_messages_train(
    template: Template, mark: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    exchange, found = EXCHANGES["elastic servers, MXNet"], []
    other = Template(tmp_path / "other.sock", COACH_TEST_MARK=mark, COACH_SHARED_MEMORY="0")
    request.addfinalizer(other.close)
    for shared, of in ((True, template), (False, other)):
        gang = Gang(2, 2, network=33, COACH_ZYGOTE_TEMPLATE=str(of.path), COACH_TEST_MARK=mark)

        mapped: list[int] = []

        def look(gang: Gang = gang, mapped: list[int] = mapped) -> None:
            child = gang.functions["server", 0].health()["child_pid"]
            mapped.append(Path(f"/proc/{child}/maps").read_text().count("memfd:coach"))

        try:
            found.append(losses(gang, tmp_path, exchange, [(2, 1), (2, 2), (2, 1)], look))
        finally:
            gang.close()
        # A group that has just changed, because a member came late, has read nothing yet.
        assert (max(mapped) > 1) == shared, "it reads what the workers push where it is"
    assert found[0] == found[1]

"""Zygotes come from a template where there is one, from their own import where there is none."""

import os
import signal
from pathlib import Path

import pytest

from tests.functions.hosting import Gang, HostedFunction, Template, eventually, is_alive
from tests.functions.messages import epoch, model_file

pytestmark = pytest.mark.mxnet


def warm(function: HostedFunction) -> dict:
    eventually(lambda: function.health()["state"] == "idle", 60)
    return function.health()


def test_functions_outlive_their_template_and_then_import_themselves(tmp_path: Path, mark: str) -> None:
    template = Template(tmp_path / "t.sock", COACH_TEST_MARK=mark)
    gang = Gang(1, 1, 32, COACH_ZYGOTE_TEMPLATE=str(template.path), COACH_TEST_MARK=mark)
    try:
        assert warm(gang.worker)["from_template"]
        template.close()
        first = gang.epoch(1, 1, **epoch(tmp_path))
        os.kill(gang.worker.health()["zygote_pid"], signal.SIGKILL)
        eventually(lambda: not gang.worker.health()["from_template"])
        assert warm(gang.worker)["imports_seconds"] > 0.1
        gang.fresh_group()
        assert gang.epoch(1, 1, **epoch(tmp_path, first))["loss"] < first["loss"]
    finally:
        gang.close()


def test_a_group_imports_nothing_that_its_zygote_could_have_imported(
    template: Template, mark: str, tmp_path: Path
) -> None:
    gang = Gang(1, 1, 34, COACH_ZYGOTE_TEMPLATE=str(template.path), COACH_TEST_MARK=mark)
    listing = tmp_path / "imported"
    model = f"""
        import pathlib, sys
        from mxnet import gluon

        BEFORE = set(sys.modules)

        class Telling(gluon.nn.Sequential):
            def forward(self, x):
                pathlib.Path({str(listing)!r}).write_text(" ".join(set(sys.modules) - BEFORE))
                return super().forward(x)

        def net():
            layers = Telling()
            layers.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
            return layers

        def loss():
            return gluon.loss.SoftmaxCrossEntropyLoss()
    """
    try:
        asked = epoch(tmp_path, model=model_file(tmp_path / "telling.py", model))
        first = gang.epoch(1, 1, **asked)
        gang.fresh_group()
        gang.epoch(1, 1, **epoch(tmp_path, first, model=asked["model"]))
    finally:
        gang.close()
    assert [name for name in listing.read_text().split() if name.startswith(("training", "mxnet"))] == []


def test_a_function_closed_in_good_order_leaves_nothing(template: Template, mark: str) -> None:
    function = HostedFunction("worker", "127.0.33.1", COACH_ZYGOTE_TEMPLATE=str(template.path), COACH_TEST_MARK=mark)
    pid = warm(function)["zygote_pid"]
    function.process.stdin.close()
    assert function.process.wait(60) == 0
    function.process.stdout.close()
    eventually(lambda: not is_alive(pid))


def test_a_missing_template_is_no_obstacle(tmp_path: Path, mark: str) -> None:
    function = HostedFunction(
        "server", "127.0.33.2", COACH_ZYGOTE_TEMPLATE=str(tmp_path / "none.sock"), COACH_TEST_MARK=mark
    )
    try:
        health = warm(function)
        assert not health["from_template"]
        opened = [str(link.readlink()) for link in Path(f"/proc/{health['zygote_pid']}/fd").iterdir()]
        assert not [path for path in opened if path.endswith("nuclio.py")], "it inherited the function's files"
    finally:
        function.close()

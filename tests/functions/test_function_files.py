"""The three functions are deployable as Nuclio expects them, and stay apart from coach/."""

import ast
from pathlib import Path

import pytest
import yaml

from tests.functions.hosting import FUNCTIONS

ROLES = ("scheduler", "server", "worker")


@pytest.mark.parametrize("role", ROLES)
def test_a_function_is_described_in_nuclios_format(role: str) -> None:
    described = yaml.safe_load((FUNCTIONS / role / "function.yaml").read_text())
    assert (described["apiVersion"], described["kind"]) == ("nuclio.io/v1beta1", "NuclioFunction")
    spec = described["spec"]
    assert spec["runtime"] == "python:3.11"
    module, name = spec["handler"].split(":")
    path = FUNCTIONS / Path(*module.split(".")).with_suffix(".py")
    defined = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
    assert {name, "init_context"} <= defined
    assert {"name": "COACH_ROLE", "value": role} in spec["env"]
    (trigger,) = spec["triggers"].values()
    assert trigger["kind"] == "http" and trigger["numWorkers"] == 1


def test_functions_import_nothing_of_coach_and_mxnet_stays_in_its_folder() -> None:
    for path in FUNCTIONS.rglob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
        assert "coach" not in imported, path
        if "mxnet" in imported:
            assert path.parent.name in ("mxnet", "models"), path


@pytest.mark.parametrize("path", sorted((FUNCTIONS / "models").glob("*.py")), ids=lambda path: path.stem)
def test_example_models_define_what_a_model_file_must(path: Path) -> None:
    defined = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
    assert {"net", "loss"} <= defined

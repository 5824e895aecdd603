"""The example notebook, run cell by cell as a notebook does; what its cells end with is shown as tables and figures."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from coach.handler.state.state_directory import StateDirectory
from tests.cli.conftest import ROOT
from tests.service.test_serve import served

pytestmark = pytest.mark.processes


def test_the_notebook_runs_and_shows_jobs_and_figures(
    home: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]
    monkeypatch.chdir(tmp_path)
    shown, names = [], dict[str, Any]()
    with served(tmp_path):
        for cell in cells:
            if cell["cell_type"] != "code":
                continue
            *before, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(before, []), "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
            else:
                exec(compile(ast.Module([last], []), "cell", "exec"), names)
    nobody, _, detail, curve, _ = shown
    assert nobody._repr_html_().startswith("<table><tr><th>name</th>")
    assert "<p>digits: Succeeded, loss " in detail._repr_html_()
    assert detail._repr_html_().count("<tr>") == 1 + len(detail.epochs)
    assert curve._repr_png_() == bytes(curve) and curve._repr_svg_() is None
    assert "Succeeded" in capsys.readouterr().out

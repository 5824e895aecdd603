"""`coach --context NAME COMMAND`: what is refused before a cluster is asked, and what is asked of the API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from coach.cli import remote
from coach.cli.main import invoke
from coach.core.errors import UserError


def test_the_options_stand_before_the_command() -> None:
    assert remote.split(["--context", "dev", "--namespace=ml", "ps", "-o", "json"]) == (
        {"--context": "dev", "--namespace": "ml"},
        ["ps", "-o", "json"],
    )
    assert remote.split(["run", "--context", "dev"]) == ({}, ["run", "--context", "dev"])
    with pytest.raises(UserError, match="--context needs a value"):
        remote.split(["--context"])


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(
        """
apiVersion: v1
kind: Config
current-context: dev
contexts: [{name: dev, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""
    )
    monkeypatch.setenv("KUBECONFIG", str(file))


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["--context", "dev", "run", "job.yaml"],
            2,
            "`coach run` and `coach serve` have --context themselves",
        ),
        (["--context", "dev"], 2, "(no command)"),
        (["--context", "kind", "ps"], 2, "--context kind: no such context; the kubeconfig has: dev"),
        (["--context", "dev", "ps"], 5, "the API server at https://127.0.0.1:9 does not respond"),
        (["--context", "dev", "submit"], 2, "takes job files alone"),
        (["--context", "dev", "suspend", "--now", "job"], 2, "takes names of jobs alone"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == code
    assert said in capsys.readouterr().err


def test_without_a_kubeconfig_the_next_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert invoke(["--context", "dev", "ps"]) == 5
    assert "kubectl config get-contexts" in capsys.readouterr().err


@pytest.mark.usefixtures("kubeconfig")
def test_help_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--context", "dev", "ps", "--help"]) == 0
    assert "List the jobs of all runs" in capsys.readouterr().out

"""`coach --context NAME COMMAND`: what is refused before a cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from coach.cli.main import invoke


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
def test_help_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--context", "dev", "ps", "--help"]) == 0
    assert "List the jobs of all runs" in capsys.readouterr().out


@pytest.mark.usefixtures("kubeconfig")
def test_a_command_for_this_machine_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--context=dev", "--namespace", "ml", "export"]) == 2
    assert "these commands work on a cluster's jobs: run, search" in capsys.readouterr().err
    assert invoke(["ps"]) == 0, "the next command line is of this machine again"

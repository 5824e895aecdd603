"""`coach --context NAME COMMAND`: what is refused before a cluster is asked, and what is asked of the API server."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from coach.cli import remote
from coach.cli.main import invoke
from coach.cli.remote_commands import unpacked
from coach.core.errors import UserError


def test_the_options_stand_before_the_command() -> None:
    assert remote.split(["--context", "dev", "--namespace=ml", "ps", "-o", "json"]) == (
        {"--context": "dev", "--namespace": "ml"},
        ["ps", "-o", "json"],
    )
    assert remote.split(["run", "--context", "dev"]) == ({}, ["run", "--context", "dev"])


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


def archive(*members: tuple[str, bytes]) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w|") as file:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    packed.seek(0)
    return packed


def test_a_model_that_was_sent_is_written_with_its_card(tmp_path: Path) -> None:
    sent = [("../../best.npz", b"arrays"), ("best.npz.json", b'{"file": "best.npz", "loss": 0.5}')]
    assert unpacked(archive(*sent), tmp_path, force=False) == tmp_path / "best.npz"
    assert (tmp_path / "best.npz").read_bytes() == b"arrays"
    assert unpacked(archive(*sent), tmp_path / "mine.npz", force=False) == tmp_path / "mine.npz"
    assert json.loads((tmp_path / "mine.npz.json").read_text()) == {"file": "mine.npz", "loss": 0.5}
    with pytest.raises(UserError, match="--force overwrites it"):
        unpacked(archive(*sent), tmp_path, force=False)


@pytest.mark.parametrize(
    "sent",
    [io.BytesIO(b"coach: no such command"), archive(("a", b"")), archive(("a", b""), ("a.json", b"{"))],
)
def test_what_is_no_model_is_said_and_leaves_no_file(tmp_path: Path, sent: io.BytesIO) -> None:
    with pytest.raises(UserError, match="the handler sent no model"):
        unpacked(sent, tmp_path / "model.npz", force=False)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.usefixtures("kubeconfig")
def test_help_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--context", "dev", "ps", "--help"]) == 0
    assert "List the jobs of all runs" in capsys.readouterr().out

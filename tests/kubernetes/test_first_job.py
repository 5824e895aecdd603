"""docs/guides/kubernetes.md as a newcomer follows it, on a cluster without Coach: before tests that install it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.kubernetes.cluster import FILES, ExistingCluster
from tests.kubernetes.installed import HELM, Coach, ours

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PAGE = ROOT / "docs/guides/kubernetes.md"
#: Seconds that a command may take: more than the job's own `timeLimit`.
LIMIT = 660.0


@pytest.fixture
def shell(cluster: ExistingCluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a newcomer's shell; Coach is uninstalled afterwards, and nothing is left."""
    ours(cluster).reset_volume()
    file = tmp_path / "kubeconfig"
    file.write_text(cluster.kubeconfig.read_text())
    file.chmod(0o600)
    programs = [HELM.parent, FILES / "bin", Path(sys.executable).parent]
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(file), "COACH_HOME": str(tmp_path / "home")}
    context = cluster.kubectl("config", "current-context").strip()
    subprocess.run(
        ["kubectl", "config", "rename-context", context, "kind-dev"],  # what `kind create cluster` calls it
        env=environment,
        check=True,
        capture_output=True,
    )
    yield environment
    Coach(cluster).uninstall()


def run(line: str, environment: dict[str, str]) -> str:
    """What a command prints; one that watches gets Ctrl-C once the job has succeeded."""
    printed = []
    with subprocess.Popen(
        ["bash", "-c", line],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        limit = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        try:
            assert process.stdout is not None
            for said in process.stdout:
                printed.append(said)
                if "--watch" in line and "Succeeded" in said:
                    os.killpg(process.pid, signal.SIGINT)
                    break
            printed += process.stdout
            code = process.wait()
        finally:
            limit.cancel()
    text = "".join(printed)
    assert code == 0 or "Succeeded" in text, f"{line}: exit code {code}\n{text}"
    return text


def test_the_pages_ten_commands_train_a_job(cluster: ExistingCluster, shell: dict[str, str]) -> None:
    first, second = [block for block in blocks(PAGE) if block.language == "bash"]
    assert first.words.startswith("not-run: ") and second.words == "run-on-cluster"
    lines = second.text.splitlines()
    assert len(first.text.splitlines()) + len(lines) == 10
    said = {line: run(line, shell) for line in lines}
    assert "lenet-digits is Succeeded" in said[lines[-1]]
    assert Coach(cluster).paid("lenet-digits") == 0

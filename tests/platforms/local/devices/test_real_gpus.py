"""The GPUs of this machine, where it has some: `make test-gpu`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coach.platforms.local import devices, pytorch_runtime
from coach.platforms.local.cluster import machine
from tests.cli.test_run import coach

#: Two processes that add up over their devices, as PyTorch's pages have it.
PROGRAM = """
import os, torch, torch.distributed as dist
cuda = torch.cuda.is_available()
dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
one = torch.ones(1, device="cuda" if cuda else "cpu") * (dist.get_rank() + 1)
dist.all_reduce(one)
print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), "loss:", one.item() / 100, flush=True)
"""


@pytest.mark.skipif(machine().gpu < 1, reason="this machine has no GPU")
def test_nvml_says_of_each_gpu_what_it_is_and_does() -> None:
    found = devices.found()
    assert devices.vendor().answers() and len({one.uuid for one in found}) == machine().gpu
    for device in found:
        assert device.uuid.startswith(("GPU-", "MIG-")) and device.model and device.memory > 1
        assert devices.vendor().problem(device) == "" and devices.vendor().use(device).memory is not None


@pytest.mark.pytorch
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "gpus",
    [
        "0",
        pytest.param("1", marks=pytest.mark.skipif(machine().gpu < 2, reason="this machine has no two GPUs")),
    ],
)
def test_two_workers_of_a_program_add_up_over_their_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    script = tmp_path / "adds.py"
    script.write_text(PROGRAM)
    words = ["run", "--name", "adds", "--budget", "unlimited", "--target", "loss=0.03", "--workers", "2"]
    words += ["--cpu", "0.5", "--memory", "1Gi", "--metric", "loss: (.+)", "--no-live"]
    if gpus != "0":
        words += ["--gpus", gpus]
    done = coach(*words, "--", str(pytorch_runtime.torch().python), str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    if gpus != "0":
        log = Path(os.environ["COACH_HOME"], "jobs/adds/logs/adds-worker-0.log").read_text()
        assert all(one.uuid in log for one in devices.found()[:2])

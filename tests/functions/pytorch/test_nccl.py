"""Gradients that are added by a group of their own, which a view forms and aborts, as those on GPUs are by NCCL.

A second group of gloo's stands in for NCCL's, so that all but NCCL itself runs: each worker says that it has a GPU, and
what stands in writes down what becomes of it. `make test-gpu` has what one GPU can show.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.functions.hosting import Elastic, eventually
from tests.functions.pytorch.test_elastic import SAMPLES, SLOW, assert_as_undisturbed, replayed, slow
from tests.functions.pytorch.test_training import in_torch

pytestmark = pytest.mark.pytorch

STAND_IN = (
    SLOW
    + """
    import contextlib, os, socket
    from datetime import timedelta
    import torch.distributed as dist
    from training.pytorch import nccl

    DONE = Path(__file__).with_name("nccl")

    def sockets():
        found = {}
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()).startswith("socket:"):
                    found[str(entry.readlink())] = int(entry.name)
        return found

    class StandIn:
        def __init__(self, store, rank, size):
            self.store, self.rank, self.size, self.group = store, rank, size, None

        def eager_connect_single_device(self, device):
            self.connected()

        def connected(self):
            if self.group is None:
                options = dist.ProcessGroupGloo._Options()
                host = self.store.get(f"host/{self.rank}").decode()
                before = sockets()
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
                options._timeout = timedelta(seconds=60)
                group = dist.ProcessGroupGloo(dist.PrefixStore("nccl", self.store), self.rank, self.size, options)
                group.barrier().wait()
                self.mine = {inode for inode in sockets() if inode not in before}
                self.group = group
                self.note("formed")
            return self.group

        def note(self, what):
            with DONE.open("a") as file:
                file.write(f"{os.getpid()} {what} {self.size}\\n")

        def allreduce(self, tensors):
            assert all(each.dtype == tensors[0].dtype for each in tensors)
            self.note(f"added {tensors[0].numel()} for")
            return self.connected().allreduce(tensors)

        def allgather(self, parts, tensors):
            self.note(f"added {tensors[0].numel()} for")
            return self.connected().allgather(parts, tensors)

        def abort(self):
            self.note("aborted")
            for inode, descriptor in sockets().items():
                if self.group is not None and inode in self.mine:
                    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
                        end.getpeername()  # what listens stays
                        end.shutdown(socket.SHUT_RDWR)

    nccl.gpu = lambda device: f"GPU-{os.getpid()}"
    nccl.make = StandIn
"""
)
PARAMETERS = 784 * 32 + 32 + 32 * 10 + 10


def notes(folder: Path) -> list[list[str]]:
    """Process, what it did, and of how many members the group was."""
    path = folder / "nccl"
    return [[*line.split(" ", 1)] for line in path.read_text().splitlines()] if path.exists() else []


def said(folder: Path, what: str) -> list[str]:
    """The processes that noted this."""
    return [pid for pid, noted in notes(folder) if noted == what]


def test_a_worker_joins_another_dies_and_each_view_has_a_group_of_its_own(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1], slow(tmp_path, text=STAND_IN))
    group.until_trained(0)
    group.join(2)
    group.resize(0, 1, 2)
    group.until_members(0, 1, 2)
    pids = [str(pid) for pid in group.pids(0, 1, 2)]
    eventually(lambda: set(said(tmp_path, f"added {PARAMETERS} for 3")) == {*pids})
    os.kill(int(pids[0]), signal.SIGKILL)
    group.until_members(1, 2)
    assert_as_undisturbed(group.done(1, 2), undisturbed)
    assert sorted(said(tmp_path, "formed 3")) == sorted(pids)
    assert {*pids[1:]} <= {*said(tmp_path, "aborted 3")} and {pids[1]} <= {*said(tmp_path, "aborted 2")}
    assert {*said(tmp_path, f"added {PARAMETERS} for 2")} >= {*pids[1:]}


def test_after_a_kill_every_step_was_applied_once_to_the_last_bit(group: Elastic, tmp_path: Path) -> None:
    group.start([0, 1, 2], slow(tmp_path, text=STAND_IN, samples=SAMPLES // 4, deterministic=True))
    group.until_trained(0)
    os.kill(group.pids(1)[0], signal.SIGKILL)
    group.until_members(0, 2)
    (report, _) = group.done(0, 2)
    changes = group.view()["changes"]
    assert [change["workers"] for change in changes] == [[0, 1, 2], [0, 2]]
    assert replayed(tmp_path, report, [(0, 3), (changes[1]["step"], 2)])
    assert said(tmp_path, f"added {PARAMETERS} for 3") and said(tmp_path, f"added {PARAMETERS} for 2")


def test_a_worker_that_hangs_is_given_up_and_the_others_wait_in_no_exchange(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1, 2], slow(tmp_path, text=STAND_IN))
    group.until_trained(0)
    pids = group.pids(0, 1, 2)
    os.kill(pids[2], signal.SIGSTOP)
    group.until_members(0, 1)
    os.kill(pids[2], signal.SIGKILL)
    assert_as_undisturbed(group.done(0, 1), undisturbed)
    assert group.pids(0, 1) == pids[:2]


def test_a_worker_that_dies_while_the_group_is_formed_is_not_waited_for(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    waits = STAND_IN.replace(
        "def connected(self):",
        """def connected(self):
            if self.group is None and self.rank == 1 and self.size == 3:
                self.note("waits")
                time.sleep(600)""",
    )
    group.start([0, 1, 2], slow(tmp_path, text=waits))
    eventually(lambda: said(tmp_path, "waits 3"))
    os.kill(int(said(tmp_path, "waits 3")[0]), signal.SIGKILL)
    group.until_members(0, 2)
    assert_as_undisturbed(group.done(0, 2), undisturbed)
    assert len(said(tmp_path, "formed 2")) == 2 and not said(tmp_path, "formed 3")


def test_where_one_worker_cannot_connect_all_go_by_gloo_and_do_not_try_again(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    fails = STAND_IN.replace(
        "def connected(self):",
        """def connected(self):
            if self.rank == 1:
                self.note("failed")
                raise RuntimeError("no kernel image is available")""",
    ).replace("nccl.make = StandIn", "nccl.make, nccl.FORMING_SECONDS = StandIn, 2")
    group.start([0, 1], slow(tmp_path, text=fails))
    group.until_trained(0)
    group.join(2)
    group.resize(0, 1, 2)
    group.until_members(0, 1, 2)
    assert_as_undisturbed(group.done(0, 1, 2), undisturbed)
    assert len(said(tmp_path, "failed 2")) == 1 and not any("formed" in noted for _, noted in notes(tmp_path))
    assert not [noted for _, noted in notes(tmp_path) if noted.startswith(f"added {PARAMETERS}")]


def test_two_workers_on_one_gpu_go_by_gloo(group: Elastic, tmp_path: Path) -> None:
    shared = STAND_IN.replace('f"GPU-{os.getpid()}"', '"GPU-0"')
    group.start([0, 1], slow(tmp_path, text=shared, samples=640))
    (report, _) = group.done(0, 1)
    assert report["workers"] == 2 and not notes(tmp_path)


#: PyTorch as it is with a GPU of NVIDIA's, as far as is asked.
WITH_A_GPU = """
import json, os, sys, types, torch
import torch.distributed as dist
sys.path.insert(0, "functions")
from training.pytorch import nccl
cpu, cuda = torch.device("cpu"), torch.device("cuda", 1)
torch.version.cuda, dist.is_nccl_available = "13.2", lambda: True
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid=f"GPU-{device.index}")
dist.ProcessGroupNCCL = types.SimpleNamespace(abort=None)
found = [nccl.gpu(cpu), nccl.gpu(cuda)]
os.environ[nccl.VARIABLE] = "gloo"
found.append(nccl.gpu(cuda))
del os.environ[nccl.VARIABLE], dist.ProcessGroupNCCL.abort
found.append(nccl.gpu(cuda))
torch.version.cuda = None
print(json.dumps([*found, nccl.gpu(cuda)]))
"""


def test_gradients_go_by_nccl_on_nvidias_gpus_where_it_can_be_aborted_and_is_not_switched_off() -> None:
    assert in_torch(WITH_A_GPU) == ["", "GPU-1", "", "", ""]


def test_nccl_takes_the_options_that_it_is_given() -> None:
    """Without a GPU, PyTorch's own class says so after it has read them. A PyTorch without NCCL has no such class."""
    said = in_torch("""
        import json, sys, torch
        import torch.distributed as dist
        sys.path.insert(0, "functions")
        from training.pytorch import nccl
        said = "PyTorch has no NCCL"
        if dist.is_nccl_available() and not torch.cuda.is_available():
            try:
                nccl.make(dist.HashStore(), 0, 1)
            except ValueError as error:
                said = str(error)
        print(json.dumps(said))
    """)
    assert said == "PyTorch has no NCCL" or "no GPUs found" in said

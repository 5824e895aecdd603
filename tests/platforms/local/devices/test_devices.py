"""The GPUs of this machine, as NVIDIA's own binding finds them in a small C library whose numbers a test chooses."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.platforms.local import devices
from coach.platforms.local.cluster import machine, parse_nodes
from coach.platforms.local.devices import Lease, nvml
from tests.gpus import Gpus, gpus, new_uuid


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """Four GPUs of one model."""
    with gpus(tmp_path, ["NVIDIA_H100"] * 4, monkeypatch) as found:
        yield found


def test_gpus_are_found_with_model_and_memory(four: Gpus) -> None:
    found = devices.all_devices()
    assert [(one.uuid, one.index, one.model, one.memory) for one in found] == [
        (uuid, index, "NVIDIA H100", 80.0) for index, uuid in enumerate(four.uuids)
    ]
    assert devices.vendor().answers() and machine().gpu == 4


def test_a_gpu_that_is_cut_into_mig_instances_is_these_and_not_itself(four: Gpus) -> None:
    whole, instances = four.uuids[1], [new_uuid("MIG"), new_uuid("MIG")]
    four.states[whole] = "cut"
    four.instances = dict.fromkeys(instances, whole)
    four.write()
    found = devices.all_devices()
    assert [one.uuid for one in found] == [four.uuids[0], *instances, *four.uuids[2:]]
    assert [one.mig for one in found] == [False, True, True, False, False] and found[1].memory == 9.5


def test_a_gpu_that_has_fallen_off_the_bus_is_none(four: Gpus) -> None:
    before = devices.all_devices()
    four.states[four.uuids[2]] = "lost"
    four.write()
    assert [one.index for one in devices.all_devices()] == [0, 1, 3]
    assert devices.reasons(before[2]) == [f"GPU 2 (NVIDIA H100, {four.uuids[2]}): GPU is lost"]
    assert devices.reasons(before[1]) == []


def test_the_kind_of_a_node_is_the_product_of_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes:\n- {name: a, cpu: 1, memory: 1Gi, gpu: 1}\n- {name: b, cpu: 1, memory: 1Gi, gpu: 1}\n")
    with gpus(tmp_path, ["NVIDIA_H100_80GB_HBM3", "Tesla_T4"], monkeypatch):
        assert [node.kind for node in parse_nodes(str(file))] == ["NVIDIA-H100-80GB-HBM3", "Tesla-T4"]
        assert [node.kind for node in parse_nodes("")] == [""]  # one of each
    with gpus(tmp_path, ["Tesla_T4"] * 2, monkeypatch):
        assert [node.kind for node in parse_nodes("")] == ["Tesla-T4"]
    with gpus(tmp_path, [], monkeypatch):
        assert [node.kind for node in parse_nodes("")] == [""]


def seen(text: str, **environ: str) -> list[int]:
    """The indexes of the devices that a user's own variable leaves."""
    return [one.index for one in devices.visible(devices.all_devices(), {nvml.VISIBLE: text, **environ})]


def test_the_users_own_variable_limits_which_are_used(four: Gpus) -> None:
    uuids = four.uuids
    assert seen("2,0") == [2, 0] and seen(uuids[3]) == [3] and seen(f"{uuids[1][:14]},3") == [1, 3]
    assert seen("") == seen("-1") == seen("NoDevFiles") == [] and seen("1,-1,2") == [1] and seen("1, 1") == [1]
    assert devices.visible(devices.all_devices(), {}) == devices.all_devices()


def test_a_mig_instance_may_be_named_in_both_ways(four: Gpus) -> None:
    whole, instance = four.uuids[0], new_uuid("MIG")
    four.states[whole], four.instances = "cut", {new_uuid("MIG"): whole, instance: whole}
    four.write()
    for name in (instance, f"MIG-{whole}/2/0"):
        (found,) = devices.visible(devices.all_devices(), {nvml.VISIBLE: name})
        assert found.uuid == instance


@pytest.mark.parametrize("text", ["7", "GPU-", "GPU-none", "all", "0,gpu"])
def test_a_name_that_is_no_gpu_is_an_error_that_names_those_there_are(four: Gpus, text: str) -> None:
    with pytest.raises(UserError, match=rf"{nvml.VISIBLE}={text}: .*1: {four.uuids[1]}"):
        seen(text)


def test_an_index_among_gpus_of_several_models_needs_the_order_that_it_counts_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gpus(tmp_path, ["NVIDIA_T400", "NVIDIA_H100"], monkeypatch) as mixed:
        with pytest.raises(UserError, match=r"use their UUIDs .*or set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            seen("1")
        assert seen("1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [1] == seen(mixed.uuids[1])


def test_a_device_is_given_once_and_is_free_again_when_it_is_given_back(four: Gpus) -> None:
    first, second, *_ = devices.all_devices()
    lease = Lease.take(first)
    assert lease is not None and Lease.take(first) is None
    other = Lease.take(second)
    assert other is not None
    lease.close()
    lease.close()
    again = Lease.take(first)
    assert again is not None and Lease.take(second) is None
    again.close()
    other.close()
    assert devices.holder(first) is None


TAKES = """
import select, sys
from coach.platforms.local import devices
from coach.platforms.local.devices import Lease, nvml
lease = Lease.take(devices.all_devices()[0])
print("taken" if lease else "not", flush=True)
sys.stdin.read(1)
while lease and select.select([lease.socket], [], []):
    devices.answer(lease.socket, "digits\x1b[31m")
"""


def test_who_asks_learns_whose_process_has_a_device_and_its_death_frees_it(four: Gpus) -> None:
    device = devices.all_devices()[0]
    with subprocess.Popen([sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == b"taken\n"
        assert Lease.take(device) is None
        silent = devices.holder(device)  # it does not answer yet: the kernel does
        assert silent is not None and silent.pid == process.pid and silent.what == "a job of Coach"
        process.stdin.write(b".")
        process.stdin.flush()
        while (said := devices.holder(device)) is not None and said.what == "a job of Coach":
            pass
        assert said is not None and said.pid == process.pid and said.user
        assert said.what == "job digits[31m"  # what a terminal would obey is taken out
        process.kill()
    assert devices.holder(device) is None and devices.reasons(device) == []


@pytest.mark.root
def test_a_device_of_another_user_is_taken_and_says_whose_it_is(four: Gpus) -> None:
    device = devices.all_devices()[0]
    take = "first = devices.all_devices()[0]\nos.setuid(65534)\nlease = Lease.take(first)"
    other = "import os\n" + TAKES.replace("lease = Lease.take(devices.all_devices()[0])", take)
    with subprocess.Popen([sys.executable, "-c", other], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"taken\n"
        who = devices.holder(device)
        assert Lease.take(device) is None and who is not None
        assert (who.pid, who.user) == (process.pid, pwd.getpwuid(65534).pw_name)
        process.kill()
    assert devices.holder(device) is None


def test_of_many_that_take_a_device_at_once_one_gets_it(four: Gpus) -> None:
    command = [sys.executable, "-c", TAKES]
    many = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    try:
        said = [process.stdout.readline() for process in many if process.stdout]
        assert sorted(said) == [b"not\n"] * 3 + [b"taken\n"]
    finally:
        for process in many:
            process.kill()
            process.communicate()


def test_a_process_of_nobodys_counts_with_pid_and_user_unless_gpus_are_shared(
    four: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = devices.all_devices()[3]
    four.processes = [(four.uuids[3], os.getpid())]
    four.write()
    (why,) = devices.reasons(device)
    (who,) = devices.foreign(device)
    assert who.pid == os.getpid() and who.user and why == f"{device} is used by {who}"
    four.processes = [(four.uuids[3], 2**22 + 1)]  # no process has this number
    four.write()
    assert devices.reasons(device) == [
        f"{device} is used by a program that cannot be seen from here, process {2**22 + 1}"
    ]
    monkeypatch.setenv(devices.SHARE, "1")
    assert devices.reasons(device) == []


def test_memory_that_nobody_seems_to_use_is_somebodys(four: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices.all_devices()[1]
    four.used = {four.uuids[1]: 600}  # the driver's own
    four.write()
    assert devices.reasons(device) == []
    four.used = {four.uuids[1]: 39 * 1024}  # data loaders in another container
    four.write()
    assert devices.reasons(device) == [f"{device} has 39.0 GiB in use, by what cannot be seen from here"]
    monkeypatch.setenv(devices.SHARE, "1")
    assert devices.reasons(device) == []


TAKES_OFTEN = """
import fcntl, os, sys
from coach.platforms.local import devices
from coach.platforms.local.devices import Lease, nvml
found, had = devices.all_devices()[:2], 0
for turn in range(2500):
    device = found[turn % 2]
    if (lease := Lease.take(device)) is not None:
        with open(os.path.join(sys.argv[1], device.uuid), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: another has it, too
            had += 1
            fcntl.flock(file, fcntl.LOCK_UN)
        lease.close()
        lease.close()  # another may have it by now, and keeps it
print(had)
"""


def test_a_device_is_never_had_twice_in_ten_thousand_tries(four: Gpus, tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    command = [sys.executable, "-c", TAKES_OFTEN, str(tmp_path / "held")]
    many = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    had = [int(process.communicate()[0]) for process in many]
    assert [process.returncode for process in many] == [0] * 4 and sum(had) >= 2500
    assert all(devices.holder(one) is None for one in devices.all_devices())


def test_a_device_is_itself_whatever_number_it_has(four: Gpus) -> None:
    first = devices.all_devices()[0]
    lease = Lease.take(first)
    assert lease is not None
    four.uuids.reverse()  # as after a restart of the machine, or with other cards
    four.write()
    assert [devices.holder(one) is not None for one in devices.all_devices()] == [False, False, False, True]
    lease.close()


def test_without_nvml_the_drivers_folder_says_which_gpus_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "_nvml", lambda: None)
    monkeypatch.setattr(nvml, "GPUS", tmp_path / "gpus")
    monkeypatch.setattr(nvml, "DEVICES", tmp_path)
    monkeypatch.delenv(nvml.VISIBLE, raising=False)
    assert machine().gpu == 0
    for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm"):  # in some containers there is nothing else
        (tmp_path / name).touch()
    assert [one.uuid for one in devices.all_devices()] == ["0", "1"] and machine().gpu == 2
    for number, address in enumerate(("0000:01:00.0", "0000:02:00.0", "0000:41:00.0")):
        folder = tmp_path / "gpus" / address
        folder.mkdir(parents=True)
        folder.joinpath("information").write_text(f"Model: \t\t Tesla T4\nGPU UUID: \t GPU-{number}\nIRQ: 5\n")
    found = devices.all_devices()
    assert [(one.uuid, one.index, one.model) for one in found] == [(f"GPU-{n}", n, "Tesla T4") for n in range(3)]
    assert not devices.vendor().answers() and devices.foreign(found[0]) == [] and devices.reasons(found[0]) == []

"""GPUs of AMD, as its own binding finds them in a small C library whose numbers a test chooses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.platforms.local import devices
from coach.platforms.local.cluster import machine, parse_nodes
from coach.platforms.local.devices import amd, nvml
from coach.service import doctor
from tests.gpus import Gpus, amd_gpus
from tests.platforms.local.devices.test_device_pool import Box, used

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """Three GPUs; HIP has the last as its first."""
    with amd_gpus(tmp_path, ["AMD_Instinct_MI210", "AMD_Instinct_MI300X", "AMD_Instinct_MI300X"], monkeypatch) as found:
        yield found


def test_gpus_are_found_with_model_and_memory_in_the_order_of_hip(three: Gpus) -> None:
    found = devices.all_devices()
    assert [(one.uuid, one.index, one.model, one.memory) for one in found] == [
        (uuid, index, model.replace("_", " "), 80.0)
        for index, (uuid, model) in enumerate(zip(three.uuids[::-1], three.models[::-1], strict=True))
    ]
    assert devices.vendor() is amd and machine().gpu == 3
    (check,) = doctor._gpus()
    assert check.found == "2 x AMD Instinct MI300X, 1 x AMD Instinct MI210, by amdsmi"


def test_what_they_do_is_seen_also_where_only_an_average_is_known(three: Gpus) -> None:
    for number, uuid in enumerate(three.uuids):
        three.used[uuid], three.busy[uuid] = 1024 * (number + 1), 10 * number
    three.processes = [(three.uuids[0], os.getpid()), (three.uuids[1], 2**22 + 1)]
    three.write()
    found = devices.all_devices()[::-1]
    assert [amd.use(one) for one in found] == [(1.0, 0.0, 300.0), (2.0, 10.0, 300.0), (3.0, 20.0, 300.0)]
    (mine,), (other,), nothing = (devices.foreign(one) for one in found)
    assert mine.pid == os.getpid() and other.what == "a program that cannot be seen from here" and nothing == []
    assert devices.reasons(found[0]) == [f"{found[0]} is used by {mine}"]
    assert devices.reasons(found[2]) == [f"{found[2]} has 3.0 GiB in use, by what cannot be seen from here"]


def test_one_that_has_fallen_off_the_bus_is_none(three: Gpus) -> None:
    before = devices.all_devices()
    three.states[three.uuids[1]] = "lost"
    three.write()
    assert [one.index for one in devices.all_devices()] == [0, 2]
    words = "AMDSMI_STATUS_NOT_FOUND - Device Not found"
    assert [one.model for one in devices.all_devices(lost=True) if not one.uuid] == [words]
    assert devices.reasons(before[1]) == [f"GPU 1 (AMD Instinct MI300X, {three.uuids[1]}): {words}"]
    assert amd.use(before[1]) == (None, None, None) and devices.foreign(before[1]) == []
    assert devices.reasons(before[0]) == []


def test_partitions_of_a_gpu_have_one_uuid_and_are_named_by_index(three: Gpus) -> None:
    three.uuids[1] = three.uuids[2]
    three.write()
    assert [one.uuid for one in devices.all_devices()] == ["0", "1", three.uuids[0]]


def seen(**environ: str) -> list[int]:
    return [one.index for one in devices.visible(devices.all_devices(), environ)]


def test_the_users_own_variables_limit_which_are_used_one_within_the_other(three: Gpus) -> None:
    last, middle, first = three.uuids
    assert seen() == [0, 1, 2] and seen(**{ROCR: "2,0"}) == [2, 0] and seen(**{ROCR: f"{middle},{first}"}) == [1, 0]
    assert seen(**{HIP: "1"}) == [1] == seen(**{CUDA: "1"}) == seen(**{HIP: "1", CUDA: "0"})
    assert seen(**{ROCR: f"{last},1", HIP: "1"}) == [1] and seen(**{ROCR: "2,1", HIP: "0"}) == [2]
    assert seen(**{ROCR: ""}) == seen(**{HIP: "-1"}) == []
    with pytest.raises(UserError, match=rf"{HIP}=1: 1 is not one of this machine's GPUs \(2: {last}\)"):
        seen(**{ROCR: "2", HIP: "1"})


def test_a_process_sees_its_own_by_uuid_and_nothing_that_it_inherits_counts_within_them(three: Gpus) -> None:
    first, second, _ = devices.all_devices()
    assert amd.sees([second, first]) == {ROCR: f"{second.uuid},{first.uuid}", HIP: "0,1", CUDA: "0,1"}
    assert amd.sees([]) == {ROCR: "", HIP: "-1", CUDA: "-1"}
    for given in (amd.sees([second, first]), amd.sees([])):  # as a `coach run` inside reads it
        assert seen(**given) == ([1, 0] if given[ROCR] else [])


@pytest.mark.parametrize("without", ["library", "package", "GPUs"])
def test_without_amdsmi_a_sentence_says_what_is_missing(
    three: Gpus, without: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nvml, "GPUS", tmp_path / "none")
    monkeypatch.setattr(nvml, "DEVICES", tmp_path)
    monkeypatch.setattr(doctor, "AMD", tmp_path)
    if without == "library":
        monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    elif without == "package":
        monkeypatch.setitem(sys.modules, "amdsmi", None)
    else:
        monkeypatch.delenv("AMD_GPUS")
    amd._amdsmi.cache_clear()
    assert devices.vendor() is nvml and machine().gpu == 0
    (check,) = doctor._gpus()
    assert check.found == "AMD's driver is here, but amdsmi does not answer: Coach sees no GPU"
    assert "pip install amdsmi==VERSION" in check.next_step


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Two GPUs of AMD."""
    with amd_gpus(tmp_path, ["AMD_Instinct_MI300X"] * 2, monkeypatch) as found:
        yield from used(tmp_path, found)


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_two_runs_have_a_gpu_each_and_a_job_without_one_sees_none(box: Box) -> None:
    assert [node.kind for node in parse_nodes("")] == ["AMD-Instinct-MI300X"]
    box.run("a", "--gpus", "1", who="anna")
    box.run("b", "--gpus", "1", who="ben")
    ran = box.seen(2)
    assert {one[ROCR] for one in ran} == set(box.gpus.uuids) and {one[HIP] for one in ran} == {"0"}
    box.run("none", who="cleo")
    (none,) = box.seen(1, "none")
    assert (none[ROCR], none[HIP], none[CUDA]) == ("", "-1", "-1")
    listed = json.loads(box.coach("ps", "--devices", "-o", "json"))
    assert [one["uuid"] for one in listed] == box.gpus.uuids[::-1]
    assert {one["model"] for one in listed} == {"AMD Instinct MI300X"}
    box.end()
    said = box.refused("c", "--gpus", "1", "--set", f"program.env.{HIP}=0,1", who="dora")
    assert f"program.env: {HIP} '0,1', but Coach gives this job its GPUs" in said

"""What a new kind of platform is asked at once: the whole protocol, and a place where its programs are tested."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from coach.cli.options import PlatformKind
from coach.platforms.base import Platform
from tests.platforms.program_contract import ProgramContract

CLASSES = {
    PlatformKind.LOCAL: "coach.platforms.local.platform:LocalPlatform",
    PlatformKind.KUBERNETES: "coach.platforms.kubernetes.platform:KubernetesPlatform",
    PlatformKind.NUCLIO: "coach.platforms.nuclio.platform:NuclioPlatform",
    PlatformKind.SLURM: "coach.platforms.slurm.platform:SlurmPlatform",
}
#: Which tests hold its programs to `ProgramContract`.
CONTRACTS = {
    PlatformKind.LOCAL: "tests.platforms.local.test_contract:TestThisMachine",
    PlatformKind.SLURM: "tests.slurm.test_contract:TestSlurm",
}
#: On clusters that tests install, programs have scenarios of their own.
SCENARIOS = {
    PlatformKind.KUBERNETES: "tests/kubernetes/test_programs.py",
    PlatformKind.NUCLIO: "tests/kubernetes/test_nuclio.py",
}
METHODS = [name for name, member in vars(Platform).items() if inspect.isfunction(member) and name[0] != "_"]


def named(path: str) -> type:
    module, name = path.split(":")
    found: type = getattr(import_module(module), name)
    return found


@pytest.mark.parametrize("kind", PlatformKind)
@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_platform_has_the_whole_protocol(kind: PlatformKind, method: str) -> None:
    promised, there = getattr(Platform, method), getattr(named(CLASSES[kind]), method)
    assert len(inspect.signature(there).parameters) == len(inspect.signature(promised).parameters)
    assert inspect.iscoroutinefunction(there) == inspect.iscoroutinefunction(promised)


@pytest.mark.parametrize("kind", PlatformKind)
def test_every_kind_of_platform_has_a_place_where_its_programs_are_tested(kind: PlatformKind) -> None:
    if kind in SCENARIOS:
        assert (Path(__file__).parents[2] / SCENARIOS[kind]).is_file()
        return
    assert issubclass(named(CONTRACTS[kind]), ProgramContract)

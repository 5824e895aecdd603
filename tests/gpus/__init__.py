"""GPUs that are not there: a vendor's own Python binding asks a small C library, whose numbers a test chooses."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from coach.platforms.local.devices import amd, nvml

SOURCES = Path(__file__).parent


#: Of the libraries; they go with this process.
_folders: list[tempfile.TemporaryDirectory[str]] = []


def _built(name: str, soname: str, source: Path) -> Path:
    _folders.append(folder := tempfile.TemporaryDirectory(prefix="coach-gpus-"))
    path = Path(folder.name, "lib", name)
    path.parent.mkdir()
    words = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{SOURCES}", f"-Wl,-soname,{soname}", "-o", path, source]
    subprocess.run(words, check=True)
    return path


@cache
def library() -> Path:
    """The folder that has NVIDIA's library, built once for all tests of a process."""
    return _built("libnvidia-ml.so.1", "libnvidia-ml.so.1", SOURCES / "nvml.c").parent


@cache
def rocm() -> Path:
    """ROCm's folder, with AMD's library in it. What the Python package names and Coach does not use fails there."""
    package = importlib.util.find_spec("amdsmi")
    assert package is not None and package.origin is not None
    wanted = Path(package.origin).with_name("amdsmi_wrapper.py").read_text()
    own = (SOURCES / "amdsmi.c").read_text()
    names = {name for name in re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wanted) if f"{name}(" not in own}
    with tempfile.NamedTemporaryFile("w", suffix=".c") as whole:
        whole.write(own + "".join(f"int {name}(void) {{ return 2; }}\n" for name in sorted(names)))
        whole.flush()
        return _built("libamd_smi.so", "libamd_smi.so.26", Path(whole.name)).parent.parent


@dataclass
class Gpus:
    """What the library says. `write` makes it so."""

    file: Path
    uuids: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    #: Instances by UUID: their GPU.
    instances: dict[str, str] = field(default_factory=dict)
    processes: list[tuple[str, int]] = field(default_factory=list)
    busy: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    #: By UUID: a file that is open in the processes which are on that GPU.
    files: dict[str, Path] = field(default_factory=dict)

    def write(self) -> None:
        """Let the library say this from now on."""
        lines = [
            f"gpu {one} {model} 81920 {self.used.get(one, 0)} {self.busy.get(one, 0)} 300 "
            + self.states.get(one, "good")
            for one, model in zip(self.uuids, self.models, strict=True)
        ]
        lines += [f"mig {one} {gpu} MIG_1g.10gb 9728" for one, gpu in self.instances.items()]
        lines += [f"process {one} {pid} 1024" for one, pid in self.processes]
        lines += [f"file {one} {path}" for one, path in self.files.items()]
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.file)

    @property
    def env(self) -> dict[str, str]:
        """With these variables a process finds these GPUs."""
        return {"LD_LIBRARY_PATH": str(library()), "NVML_GPUS": str(self.file)}


def new_uuid(kind: str = "GPU") -> str:
    """Other than that of any test that runs beside this one: a device is taken on the whole machine."""
    return f"{kind}-{uuid.uuid4()}"


@contextmanager
def gpus(folder: Path, models: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """These GPUs, for this process and those that it starts."""
    found = Gpus(folder / "gpus", [new_uuid() for _ in models], models)
    found.write()
    monkeypatch.setenv("NVML_GPUS", str(found.file))
    before = os.environ.get("LD_LIBRARY_PATH")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library()) + (f":{before}" if before else ""))
    monkeypatch.delenv(nvml.VISIBLE, raising=False)
    ctypes.CDLL(str(library() / "libnvidia-ml.so.1"))  # whoever asks for this name gets it from now on
    nvml._nvml.cache_clear()
    yield found
    nvml._nvml.cache_clear()


@contextmanager
def amd_gpus(folder: Path, models: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """The same of AMD; HIP counts them from the last one on. There are none of NVIDIA."""
    found = Gpus(folder / "gpus", [f"GPU-{uuid.uuid4().hex[:16]}" for _ in models], models)
    found.write()
    monkeypatch.setenv("AMD_GPUS", str(found.file))
    monkeypatch.setenv("ROCM_PATH", str(rocm()))
    for name in ("NVML_GPUS", *(name for group in amd.LIMITS for name in group)):
        monkeypatch.delenv(name, raising=False)
    nvml._nvml.cache_clear()
    amd._amdsmi.cache_clear()
    yield found
    nvml._nvml.cache_clear()
    amd._amdsmi.cache_clear()

"""GPUs that are not there: NVIDIA's own Python binding asks a small C library, whose numbers a test chooses."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from coach.platforms.local import devices

SOURCE = Path(__file__).with_name("nvml.c")


@cache
def library() -> Path:
    """The folder that has the library, built once for all tests of a process."""
    folder = tempfile.TemporaryDirectory(prefix="coach-nvml-")
    library.folder = folder  # type: ignore[attr-defined]
    path = Path(folder.name, "libnvidia-ml.so.1")
    subprocess.run(
        ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, SOURCE], check=True
    )
    return path.parent


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
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    ctypes.CDLL(str(library() / "libnvidia-ml.so.1"))  # whoever asks for this name gets it from now on
    devices._nvml.cache_clear()
    yield found
    devices._nvml.cache_clear()

"""Jobs and their GPUs: real programs, several `coach run` beside each other, GPUs of a stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coach.cli.main import invoke
from coach.core.jobs.job import Job
from coach.platforms.local.devices.nvml import VISIBLE
from tests.forked import Forked, output
from tests.gpus import Gpus, gpus, new_uuid
from tests.platforms.local.test_platform import ended, handler_on, job, submit

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

#: It says what it sees, and trains until a file is there.
PROGRAM = """
import json, os, sys, time
from pathlib import Path
names = [f"{of}_VISIBLE_DEVICES" for of in ("CUDA", "HIP", "ROCR")] + ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
seen = Path(os.environ["SEEN"], f"{os.environ['COACH_JOB']}-{os.environ.get('RANK', 0)}-{os.getpid()}")
seen.with_suffix(".new").write_text(json.dumps({name: os.environ.get(name) for name in names}))
seen.with_suffix(".new").rename(seen)
epoch = 0
while not Path(os.environ["SEEN"], "end").exists():
    time.sleep(0.5)
    print(f"epoch {epoch}: loss: {0.999**epoch}", flush=True)
    epoch += 1
print(f"epoch {epoch}: loss: 0.1", flush=True)
time.sleep(60)
"""

PROGRAM_WORDS = ("--", sys.executable, "program.py")


@dataclass
class Box:
    """A machine with GPUs, and people who run `coach` on it."""

    folder: Path
    gpus: Gpus
    runs: list[subprocess.Popen[bytes]]

    def run(self, name: str, *options: str, who: str = "me", **env: str) -> subprocess.Popen[bytes]:
        """`coach run` of PROGRAM."""
        return self.start(*self._run(name), *options, *PROGRAM_WORDS, who=who, **env)

    def _run(self, name: str) -> list[str]:
        needs = ["--cpu", "0.1", "--memory", "128Mi", "--budget", "unlimited", "--target", "loss=0.2"]
        return ["run", "--name", name, *needs, "--metric", "loss: (.+)"]

    def _env(self, who: str) -> dict[str, str]:
        return {"COACH_HOME": str(self.folder / who), "SEEN": str(self.folder / "seen")}

    def start(self, *words: str, who: str = "me", **env: str) -> subprocess.Popen[bytes]:
        """A command that goes on."""
        home = self._env(who)
        command = [sys.executable, "-m", "coach.cli.main", *words]
        with self.output(len(self.runs)).open("wb") as file:
            run = Forked(
                command, cwd=self.folder, env={**os.environ, **home, **env}, stdout=file, stderr=subprocess.STDOUT
            )
        self.runs.append(run)
        return run

    def output(self, number: int) -> Path:
        """The file with what the number-th run says."""
        return self.folder / f"run-{number}"

    def refused(self, name: str, *options: str, who: str = "me", **env: str) -> str:
        """What a run says that fails: in this process, where it starts at once."""
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for key, value in {**self._env(who), **env}.items():
                patch.setenv(key, value)
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                assert invoke([*self._run(name), *options, *PROGRAM_WORDS]) != 0
        return said.getvalue()

    def coach(self, *words: str, who: str = "me") -> str:
        """What another command says."""
        env = {**os.environ, **self._env(who)}
        command = [sys.executable, "-m", "coach.cli.main", *words]
        return output(command, env=env)

    def says(self, words: str, *command: str, who: str = "me") -> str:
        """What a command says once these words are among it."""
        while words not in (said := self.coach(*command, who=who)):
            time.sleep(1)
        return said

    def seen(self, count: int, job: str = "") -> list[dict[str, str | None]]:
        """What so many processes of jobs see, by rank, once they run."""
        while len(found := sorted(self.folder.glob(f"seen/{job}*-*[0-9]"))) < count:
            assert not any(run.poll() for run in self.runs), [self.output(n).read_text() for n in range(len(self.runs))]
            time.sleep(0.05)
        return [json.loads(one.read_text()) for one in found]

    def end(self) -> list[str]:
        """What all runs have said once their programs have reached their targets."""
        (self.folder / "seen" / "end").touch()
        assert [run.wait() for run in self.runs] == [0] * len(self.runs)
        return [self.output(number).read_text() for number in range(len(self.runs))]


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Two GPUs."""
    with gpus(tmp_path, ["NVIDIA_H100"] * 2, monkeypatch) as found:
        yield from used(tmp_path, found)


def used(folder: Path, found: Gpus) -> Iterator[Box]:
    """A machine with these GPUs; what runs on it in the end is killed."""
    (folder / "seen").mkdir()
    (folder / "program.py").write_text(PROGRAM)
    made = Box(folder, found, [])
    yield made
    for run in made.runs:
        if run.poll() is None:
            run.kill()
            run.wait()


def test_two_runs_beside_each_other_never_share_a_device(box: Box) -> None:
    box.run("a", "--gpus", "1", who="anna")
    box.run("b", "--gpus", "1", who="ben")
    seen = box.seen(2)
    assert {one[VISIBLE] for one in seen} == set(box.gpus.uuids)
    box.run("c", "--gpus", "1", who="cleo")
    said = box.says("is taken by job", "why", "c", who="cleo")
    assert all(f"GPU {n} (NVIDIA H100, {uuid}) is taken by job" in said for n, uuid in enumerate(box.gpus.uuids))
    box.end()  # the third began once a device was given back
    assert len(box.seen(3)) == 3


def test_two_jobs_of_one_run_never_share_a_device(box: Box) -> None:
    job = f"""
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {{name: NAME}}
spec:
  program: {{command: [{sys.executable}, program.py], directory: .}}
  target: {{loss: 0.2, epochsInARow: 1}}
  budget: {{unlimited: true}}
  resources: {{worker: {{cpu: 100m, memory: 128Mi, gpu: 1}}}}
"""
    for name in ("one", "two"):
        (box.folder / f"{name}.yaml").write_text(job.replace("NAME", name))
    box.start("run", "one.yaml", "two.yaml")
    assert {one[VISIBLE] for one in box.seen(2)} == set(box.gpus.uuids)
    box.end()


def test_with_one_device_each_all_workers_see_all_and_pick_by_local_rank(box: Box) -> None:
    box.run("a", "--gpus", "1", "--workers", "2")
    both = ",".join(box.gpus.uuids)
    assert [(one[VISIBLE], one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in box.seen(2)] == [
        (both, "0", "0", "2"),
        (both, "1", "1", "2"),
    ]
    box.end()


def test_with_several_devices_each_worker_sees_its_own_alone(box: Box) -> None:
    box.gpus.uuids += [new_uuid(), new_uuid()]
    box.gpus.models *= 2
    box.gpus.write()
    box.run("a", "--gpus", "2", "--workers", "2")
    first, second = box.seen(2)
    assert [first[VISIBLE], second[VISIBLE]] == [",".join(box.gpus.uuids[:2]), ",".join(box.gpus.uuids[2:])]
    assert [(one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in (first, second)] == [
        ("0", "0", "1"),
        ("1", "0", "1"),
    ]
    box.end()


def test_of_mig_instances_each_worker_sees_its_own_alone(box: Box) -> None:
    instances = [new_uuid("MIG"), new_uuid("MIG")]
    box.gpus.states[box.gpus.uuids[0]] = "cut"
    box.gpus.instances = dict.fromkeys(instances, box.gpus.uuids[0])
    box.gpus.write()
    box.run("a", "--gpus", "1", "--workers", "2")
    assert [(one[VISIBLE], one["LOCAL_RANK"]) for one in box.seen(2)] == [(one, "0") for one in instances]
    box.end()
    refused = box.run("b", "--gpus", "2", who="ben")
    assert refused.wait() != 0
    assert "a process sees one MIG instance only; ask for gpu: 1" in box.output(1).read_text()


def test_a_job_without_gpus_sees_none_unless_they_are_shared(box: Box) -> None:
    box.run("a", who="anna")
    assert [one[VISIBLE] for one in box.seen(1)] == [""]
    box.run("b", "--share-gpus", who="ben")
    assert [one[VISIBLE] for one in box.seen(1, "b")] == [None]
    box.end()


def test_the_users_own_variable_limits_what_is_given(box: Box) -> None:
    box.run("a", "--gpus", "1", who="anna", **{VISIBLE: "1"})
    assert [one[VISIBLE] for one in box.seen(1)] == [box.gpus.uuids[1]]
    assert "the largest node has" in box.refused("b", "--gpus", "2", who="ben", **{VISIBLE: "1"})
    wrong = box.refused("c", "--gpus", "1", who="cleo", **{VISIBLE: "5"})
    assert f"{VISIBLE}=5: 5 is not one of this machine's GPUs" in wrong
    box.end()


def test_a_process_of_nobodys_keeps_its_device_until_it_ends(box: Box) -> None:
    with subprocess.Popen(["sleep", "100"]) as foreign:
        box.gpus.processes = [(uuid, foreign.pid) for uuid in box.gpus.uuids]
        box.gpus.write()
        box.run("a", "--gpus", "1", who="anna")
        said = box.says("is used by", "why", "a", who="anna")
        assert f"is used by sleep, process {foreign.pid} of " in said
        box.run("b", "--gpus", "1", "--share-gpus", who="ben")
        assert [one[VISIBLE] for one in box.seen(1, "b")] == [box.gpus.uuids[0]]
        foreign.kill()
    box.gpus.processes = []
    box.gpus.write()
    assert [one[VISIBLE] for one in box.seen(1, "a")] == [box.gpus.uuids[1]]
    box.end()


def test_a_killed_run_gives_its_device_back(box: Box) -> None:
    box.gpus.uuids.pop()
    box.gpus.models.pop()
    box.gpus.write()
    killed = box.run("a", "--gpus", "1", who="anna")
    box.seen(1)
    killed.kill()
    killed.wait()
    box.runs.clear()
    box.run("b", "--gpus", "1", who="ben")
    assert [one[VISIBLE] for one in box.seen(1, "b")] == box.gpus.uuids
    box.end()


def test_a_job_whose_device_is_lost_goes_on_with_another(box: Box) -> None:
    box.run("a", "--gpus", "1", "--resumes")
    assert [one[VISIBLE] for one in box.seen(1)] == box.gpus.uuids[:1]
    box.gpus.states[box.gpus.uuids[0]] = "lost"
    box.gpus.write()
    assert {one[VISIBLE] for one in box.seen(2)} == set(box.gpus.uuids)
    (said,) = box.end()
    assert f"GPU 0 (NVIDIA H100, {box.gpus.uuids[0]}): GPU is lost" in said


def test_a_job_file_that_sets_the_variable_itself_is_told_so(box: Box) -> None:
    said = box.refused("a", "--gpus", "1", "--set", f"program.env.{VISIBLE}=0,1")
    assert f"program.env: {VISIBLE} '0,1', but Coach gives this job its GPUs" in said


def test_nodes_with_more_gpus_than_there_are_is_an_error(box: Box) -> None:
    (box.folder / "nodes.yaml").write_text("nodes:\n- {name: a, cpu: 1, memory: 1Gi, gpu: 3}\n")
    said = box.refused("a", "--gpus", "1", "--nodes", "nodes.yaml")
    assert "3 GPUs in all, but Coach finds 2 on this machine" in said


MODEL = """
import os
from pathlib import Path
from mxnet import gluon

def net():
    Path(SEEN, f"{os.getpid()}").write_text(str(os.environ.get("CUDA_VISIBLE_DEVICES")))
    return gluon.nn.Dense(10)

def loss():
    return gluon.loss.SoftmaxCrossEntropyLoss()
"""


@pytest.mark.mxnet
@pytest.mark.usefixtures("one_template")
def test_the_worker_of_a_model_file_sees_its_own_gpu_alone(box: Box) -> None:
    model = box.folder / "says.py"
    model.write_text(MODEL.replace("SEEN", repr(str(box.folder / "seen"))))
    wanted = {"workers": {"max": 1}, "servers": {"max": 1}, "maxEpochs": 1, "target": {"loss": 1e-9}}
    resources = job("a", box.folder).spec.resources.model_dump(by_alias=True)
    resources["worker"]["gpu"] = 1
    names = ("one", "two")

    async def main() -> list[Job]:
        async with handler_on(box.folder, "") as handler:
            for name in names:
                spec = {"model": {"file": model.as_uri()}, "resources": resources, **wanted}
                submit(handler, job(name, box.folder, budget={"unlimited": True}, **spec), box.folder)
            await handler.wait(ended(handler, *names))
            return [handler.jobs[name] for name in names]

    jobs = asyncio.run(main())
    assert [one.full_epoch_count for one in jobs] == [1, 1], [one.message for one in jobs]
    seen = {file.read_text() for file in box.folder.glob("seen/*")}
    assert set(box.gpus.uuids) <= seen and seen <= {*box.gpus.uuids, ""}  # parameter servers see none


def test_data_loaders_that_outlive_their_trainer_keep_its_device(box: Box) -> None:
    """Handler and supervisor are killed at once: nobody is left to end what the trainer had started."""
    device = box.folder / "device"
    device.touch()
    box.gpus.uuids, box.gpus.models = box.gpus.uuids[:1], box.gpus.models[:1]
    box.gpus.files = {box.gpus.uuids[0]: device}
    box.gpus.write()
    with device.open() as opened, subprocess.Popen(["sleep", "100"], pass_fds=[opened.fileno()]) as loader:
        pass_on = box.run("a", "--gpus", "1", who="anna")
        opened.close()
        said = box.says("is used by sleep", "why", "a", who="anna")
        assert f"process {loader.pid}" in said and not pass_on.poll()
        loader.kill()
    assert [one[VISIBLE] for one in box.seen(1, "a")] == box.gpus.uuids
    box.end()


def test_a_device_that_works_again_is_given_again(box: Box) -> None:
    box.gpus.uuids, box.gpus.models = box.gpus.uuids[:1], box.gpus.models[:1]
    box.gpus.write()
    box.run("a", "--gpus", "1", "--resumes")
    assert len(box.seen(1)) == 1
    box.gpus.states[box.gpus.uuids[0]] = "lost"
    box.gpus.write()
    box.says("GPU is lost", "why", "a")
    box.gpus.states.clear()
    box.gpus.write()
    assert [one[VISIBLE] for one in box.seen(2)] == box.gpus.uuids * 2
    box.end()

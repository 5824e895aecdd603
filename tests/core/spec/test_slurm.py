"""What a user may tell sbatch."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from coach.core.spec.slurm import Slurm, refusal


@pytest.mark.parametrize(
    "options",
    [
        ["--partition=gpu", "--account=lab", "--qos=short"], ["-p", "gpu", "-A", "lab"], ["-pgpu", "--exclusive"],
        ["--gres=license:2", "--nodelist=n1", "--mem-bind=local", "--gpu-bind=none", "--hint=nomultithread"],
        ["--mail-type=END", "--export=NONE", "--reservation", "course", "--dependency=afterok:7"],
    ],
)  # fmt: skip
def test_options_of_sites_go_through(options: list[str]) -> None:
    assert refusal(options) is None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--nodes=2"], "workers"), (["-N2"], "workers"), (["--nod=2"], "workers"), (["-n", "4"], "workers"),
        (["--partition=gpu", "--time=1:00"], "timeLimit"), (["-t", "5"], "timeLimit"),
        (["--mem=4G"], "resources.worker.memory"), (["-c4"], "resources.worker.cpu"),
        (["--gpus=1"], "resources.worker.gpu"), (["--gres=gpu:1"], "resources.worker.gpu"),
        (["--gres=license:1,gpu:2"], "resources.worker.gpu"), (["-o", "x.log"], "coach logs"),
        (["--array=1-10"], "coach search"), (["--wrap=rm -r x"], "program.command"), (["--comment=x"], "mark"),
        (["--exclusive", ":", "--constraint=x"], "heterogeneous"),
        (["script.sh"], "options of sbatch alone"), (["--qos=x", "script.sh"], "options of sbatch alone"),
    ],
)  # fmt: skip
def test_what_coach_decides_is_refused_with_the_field_that_means_it(options: list[str], field: str) -> None:
    found = refusal(options)
    assert found is not None and field in found[1]
    with pytest.raises(ValidationError):
        Slurm(options=tuple(options))


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({"partition": "a"}, "a"), ({"options": ("-p", "b")}, "b"), ({"options": ("-pc",)}, "c"),
        ({"options": ("--partition=d",)}, "d"), ({"options": ("--partition", "e")}, "e"), ({}, None),
        ({"partition": "a", "options": ("--part=f",)}, "f"),
    ],
)  # fmt: skip
def test_the_partition_is_known_however_it_is_named(fields: dict[str, object], chosen: str | None) -> None:
    assert Slurm(**fields).chosen_partition == chosen

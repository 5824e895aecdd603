"""`coach train dl2`: a small training from a scenario and from a journal, and what it does not take."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.training.fidelity import read
from coach.cli.main import invoke
from coach.core.policies.api.allocation import Reason
from coach.handler.state.journal import Journal
from coach.plugins import policy
from coach_research.dl2 import learner, teacher, training
from coach_research.dl2.learner import Recipe
from coach_research.policies.dl2.policy import Dl2Policy
from coach_research.scenario import load
from tests.core.policies.policy_examples import Job, cluster
from tests.docs.pages import ROOT
from tests.docs.pages import blocks as blocks_of

pytestmark = pytest.mark.standard


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "copies": 8,
        "slots": 20,
        "kept": 600,
        "minibatch": 128,
        "warm_up": 1,
        "phases": 4,
        "validation_traces": 2,
    }

    def made(**changes: object) -> Recipe:
        return Recipe(**{**small, **changes})  # type: ignore[arg-type]

    monkeypatch.setattr(learner, "Recipe", made)


@pytest.mark.full
def test_a_network_of_one_s_own_is_trained_and_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = load("dl2-baselines").model_dump(mode="json")
    scenario["parameters"]["jobs"] = 12
    file, out = tmp_path / "own.yaml", tmp_path / "own.npz"
    file.write_text(yaml.safe_dump(scenario, allow_unicode=True))
    assert invoke(["train", "dl2", "--workload", str(file), "--out", str(out), "--seed", "4", "--batches", "3"]) == 0
    assert f"{out}: mean completion of " in capsys.readouterr().out
    assert out.with_suffix(".svg").read_text().startswith("<?xml")
    made = policy(f"dl2:{out}")
    assert isinstance(made, Dl2Policy)
    assert made.network.about["command"] == (f"coach train dl2 --workload {file} --seed 4 --batches 3 --teacher none")
    assert made.network.about["seed"] == 4


@pytest.mark.full
def test_a_teacher_is_imitated_first(tmp_path: Path) -> None:
    scenario = load("dl2-baselines").model_dump(mode="json")
    scenario["parameters"] |= {"jobs": 12, "most": 4}
    file, out = tmp_path / "own.yaml", tmp_path / "own.npz"
    file.write_text(yaml.safe_dump(scenario, allow_unicode=True))
    words = ["--workload", str(file), "--out", str(out), "--batches", "1", "--teacher", "optimus"]
    assert invoke(["train", "dl2", *words, "--reward", "own"]) == 0
    made = policy(f"dl2:{out}")
    assert isinstance(made, Dl2Policy)
    assert made.network.about["command"].endswith("--batches 1 --teacher optimus --reward own")
    # One batch is of the critic only: the network is what was imitated, with the same score of void everywhere.
    assert not made.network.weights["w3"].any()


@pytest.mark.full
def test_the_published_recipe_writes_a_network_that_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PUBLISHED_BATCH", 8), ("PUBLISHED_EVERY", 8), ("PUBLISHED_TRACES", 1)):
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(teacher, "SLOTS", 30)
    scenario = load("dl2-baselines").model_dump(mode="json")
    scenario["parameters"]["jobs"] = 12
    file, out = tmp_path / "own.yaml", tmp_path / "flat.npz"
    file.write_text(yaml.safe_dump(scenario, allow_unicode=True))
    words = ["--workload", str(file), "--out", str(out), "--batches", "2", "--recipe", "published"]
    words += ["--teacher", "srtf"]
    assert invoke(["train", "dl2", *words]) == 0
    assert out.with_suffix(".svg").is_file()
    made = policy(f"dl2:{out}")
    assert isinstance(made, Dl2Policy)
    assert made.network.flat
    assert made.network.about["command"] == (
        f"coach train dl2 --workload {file} --seed 1 --batches 2 --teacher srtf --recipe published"
    )
    decision = made.allocate([Job("a"), Job("b", created=1.0)], cluster(100))
    assert {step.reason for step in decision.steps} == {Reason.LEARNED}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """That of a real run with several jobs."""
    recorded = next(one for one in read(Path("results/simulation/journals")) if len(one.runs) > 1)
    written = Journal.write(tmp_path / "journal.db")
    written.append(recorded.records)
    written.close()
    return tmp_path


def test_a_network_is_trained_for_the_jobs_of_a_journal(tmp_path: Path, journal: Path) -> None:
    out = tmp_path / "mine.npz"
    words = ["train", "dl2", "--journal", str(journal), "--nodes", "2x4", "--out", str(out), "--batches", "3"]
    assert invoke(words) == 0
    made = policy(f"dl2:{out}")
    assert isinstance(made, Dl2Policy)
    assert made.network.about["workload"] == "journal"
    assert len(made.network.kinds) >= 1
    assert (made.network.progress[:, 1:, 1:] > 0).all()


@pytest.mark.full
def test_the_page_s_commands_train_compare_and_use_a_network_for_the_jobs_of_a_home(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The jobs of its first step are recorded; those of its last are trained in tests/cli/test_policies_live.py."""
    blocks = [one for one in blocks_of(ROOT / "research/docs/dl2.md") if one.language == "bash"]
    lines = [line for one in blocks for line in one.text.splitlines()]
    words = [line.replace("~/.local/share/coach", str(journal)).split()[1:] for line in lines]
    monkeypatch.chdir(tmp_path)
    first, train, simulate, run, serve = words
    assert (first[0], train[:2], simulate[0], run[0], serve[0]) == (
        "run", ["train", "dl2"], "simulate", "run", "serve",
    )  # fmt: skip
    assert invoke([*train, "--batches", "3"]) == 0
    assert invoke(simulate) == 0
    rows = capsys.readouterr().out
    assert "dl2:mine.npz" in rows
    assert "jobs succeeded" in rows
    for line in (run, serve):
        made = policy(line[line.index("--policy") + 1])
        assert isinstance(made, Dl2Policy)
        assert made.network.about["workload"] == "journal"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workload", "fitgpp"], "wanted one of 'dl2_baselines'"),
        (["--workload", "nothing"], "there is no experiment 'nothing'"),
        (["--out", "weights.bin"], "wanted a name that ends with .npz"),
        (["--journal", "nowhere"], "no job there has trained"),
        (["--recipe", "published", "--resume"], "leave --resume and --reward out"),
    ],
)
def test_what_it_does_not_take_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["train", "dl2", *words]) == 2
    assert said in capsys.readouterr().err

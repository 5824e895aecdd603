"""Files next to a model file travel in a ConfigMap, or it is said that they cannot."""

from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes import model_files
from tests.core.lifecycle.faulty_cluster import SPEC


@pytest.mark.parametrize("name", ["parts.py", "lib/nets.py", "pack/__init__.py", "a/b/c.py"])
def test_a_key_says_the_files_place(name: str) -> None:
    key = model_files.key(name)
    assert "/" not in key and model_files.path_of(key) == Path(name)


@pytest.mark.parametrize("key", ["...py", "..%2f.py", "notes.txt", "my-model.py", ".py", "a..py"])
def test_a_key_that_is_no_modules_is_no_file(key: str) -> None:
    assert model_files.path_of(key) is None


def test_files_that_a_config_map_cannot_carry_are_refused_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import parts")
    (tmp_path / "parts.py").write_bytes(b"#" * 1_000_001)
    model = {"file": f"file://{tmp_path}/net.py", "files": {"parts.py": "0" * 64}}
    job = TrainingJob.from_json({**SPEC, "spec": {**SPEC["spec"], "model": model}})
    with pytest.raises(UserError, match=r"have 1,000,013 bytes, more than .* into the image of the functions"):
        model_files.contents(job, tmp_path / "net.py")

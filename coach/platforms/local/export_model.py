"""A checkpoint in its framework's own format, written by the functions' own Python, for `coach model`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.gang_client import training_fields
from coach.platforms.local.environment import Functions


def export_mxnet(functions: Functions, job: TrainingJob, weights: str, file: Path) -> list[str]:
    """Write `file` (.params) and, of a HybridBlock, its symbol; the names of all. Raises UserError."""
    fields = training_fields(job.spec) | {"weights_in": weights, "file": str(file.absolute()), "threads": 1}
    ended = subprocess.run(
        [str(functions.python), "-m", "training.mxnet.export"],
        cwd=functions.folder,
        env=functions.env,
        input=json.dumps(fields),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found = json.loads(ended.stdout)
        if "files" in found:
            return list(found["files"])
        said = found["error"]["message"]
    except ValueError:
        said = ended.stderr.strip().rpartition("\n")[2] or f"its process ended with {ended.returncode}"
    raise UserError(f"{file}: MXNet could not write the network: {said}; -o NAME.npz takes its arrays as they are")

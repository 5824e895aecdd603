"""What if: jobs under other policies or on other nodes, simulated in a process of its own with limits.

python -m coach.service.views.simulations    reads a question from stdin, writes its answer to stdout
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Sequence
from typing import Any

from coach.core.cluster import Node, Resources
from coach.core.errors import CoachError, TemporaryError, UserError
from coach.core.spec.job import TrainingJob
from coach.handler.resume_rules import NotNowError
from coach.handler.state.state_directory import StateDirectory
from coach.service import schemas

#: Of one simulation: seconds of a core, seconds in all, and bytes of memory.
CPU_SECONDS, SECONDS, MEMORY = 30, 180.0, 2 << 30
#: What is assumed of a job that never ran, as `coach simulate` does by default.
SPEEDS, EPOCH_SECONDS, EPOCHS = "resnet-50", 10.0, 20.0

_running = asyncio.Lock()


async def simulate(
    home: StateDirectory,
    specs: Sequence[TrainingJob],
    nodes: Sequence[Node],
    policies: Sequence[str],
    *,
    timeline: bool,
) -> schemas.Simulated:
    """Simulate jobs that all begin now, once under each policy.

    Raises UserError where it cannot be simulated, or takes more than the limits; NotNowError while another one runs.
    """
    if _running.locked():
        raise NotNowError("another simulation runs, and one runs at a time; ask again in some seconds")
    question = {
        "specs": [spec.to_json() for spec in specs],
        "nodes": [[node.name, node.capacity.cpu, node.capacity.memory, node.capacity.gpu] for node in nodes],
        "policies": list(policies),
        "timeline": timeline,
    }
    # One thread: others would count against the limits, and disturb jobs that train.
    environment = os.environ | {"COACH_HOME": str(home.path), "OPENBLAS_NUM_THREADS": "1"}
    async with _running:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                out, _ = await child.communicate(json.dumps(question).encode())
        except TimeoutError:
            raise _too_long() from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if child.returncode and child.returncode < 0:
        raise _too_long()
    try:
        found = json.loads(out)
    except ValueError:
        raise TemporaryError(f"the simulation ended without an answer (exit code {child.returncode})") from None
    if error := found.get("error"):
        raise UserError(error)
    return schemas.Simulated.model_validate(found)


def _too_long() -> UserError:
    return UserError(
        f"the simulation was ended: it may take {CPU_SECONDS} s of a core, {SECONDS:g} s in all; give it fewer jobs, "
        "policies or epochs, or run it where you have time: coach simulate"
    )


# -- in the process of its own -----------------------------------------------------------------------------


def main() -> int:
    """Answer the question on stdin."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.nice(10)
    try:
        found = _answer(json.load(sys.stdin))
    except CoachError as error:
        found = {"error": str(error)}
    except MemoryError:
        found = {"error": f"the simulation takes more than {MEMORY >> 30} GiB; give it fewer jobs"}
    json.dump(found, sys.stdout)
    return 0


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from coach.report.simulation.tables import job_rows, timeline_rows
    from coach.studies.simulation_inputs import of_specs
    from coach.studies.study import Question, answer, placements

    specs = [TrainingJob.from_json(spec) for spec in question["specs"]]
    simulated = of_specs(specs, SPEEDS, EPOCH_SECONDS, EPOCHS, assume=False)
    nodes = tuple(Node(name, Resources(*rest)) for name, *rest in question["nodes"])
    asked = Question(tuple(simulated.jobs), tuple(simulated.dynamics), simulated.arrivals, nodes)
    runs = []
    for policy in question["policies"]:
        (placement,) = placements(policy, ["gang"])
        result = answer(asked, policy, 0, placement)
        over_time = list(timeline_rows(result)) if question["timeline"] else []
        runs.append({"policy": policy, "seconds": result.ended, "jobs": list(job_rows(result)), "timeline": over_time})
    origins = [{"origin": origin, "jobs": names} for origin, names in simulated.origins.items()]
    return {"runs": runs, "origins": origins, "nodes": len(nodes)}


if __name__ == "__main__":
    sys.exit(main())

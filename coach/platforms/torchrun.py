"""The variables that torchrun sets, for the workers of a program."""

from __future__ import annotations


def variables(  # noqa: PLR0917
    job: str, restarts: int, rank: int, workers: int, address: str, port: int, *, one_node: bool
) -> dict[str, str]:
    """What torchrun says to a worker of a group, and what a torchrun inside the command reads (PET_...).

    `one_node`: the workers are processes of one node; else each is alone on its node. A torchrun inside the command is
    one of as many nodes as there are workers, with one process.
    """
    here, node, nodes = (rank, 0, 1) if one_node else (0, rank, workers)
    found: dict[str, str | int] = {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "RANK": rank,
        "LOCAL_RANK": here,
        "GROUP_RANK": node,
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "WORLD_SIZE": workers,
        "LOCAL_WORLD_SIZE": workers if one_node else 1,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_WORLD_SIZE": workers,
        "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_MAX_RESTARTS": restarts,
        "PET_NNODES": workers,
        "PET_NPROC_PER_NODE": 1,
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "PET_RDZV_ID": f"{job}-{restarts}",
        "PET_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in found.items()}

"""Optional parts of Coach."""

from enum import StrEnum


class OptionalFeature(StrEnum):
    """The optional parts."""

    GO = "go"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"

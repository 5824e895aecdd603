"""Parts of Coach that not everybody needs."""

from enum import StrEnum


class OptionalFeature(StrEnum):
    """What only some need."""

    GO = "go"
    KUBERNETES = "kubernetes"

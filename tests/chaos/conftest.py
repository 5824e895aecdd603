"""Chaos needs the functions' Python."""

from tests.cli.conftest import functions  # noqa: F401 - a fixture

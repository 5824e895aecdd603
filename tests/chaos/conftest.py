"""Chaos needs the functions' Python."""

from tests.cli.conftest import functions, lasting_template, one_template  # noqa: F401 - fixtures

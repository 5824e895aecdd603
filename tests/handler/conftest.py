"""The state folder of the commands' tests."""

from tests.cli.conftest import home  # noqa: F401 - a fixture

"""One MXNet for the tests of this folder that are about other things."""

from tests.one_template import lasting_template, one_template

__all__ = ["lasting_template", "one_template"]

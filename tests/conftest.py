"""What holds for all tests."""

from hypothesis import settings

# A busy machine is no failure, nor is the first example's import of SciPy: no test asserts on time.
settings.register_profile("coach", deadline=None)
settings.load_profile("coach")

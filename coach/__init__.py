"""Coach trains a network to a target within a budget, and finds the workers and servers on the way."""

__version__ = "0.1.0"

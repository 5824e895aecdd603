"""Experiments that compare with the published runs of real clusters."""

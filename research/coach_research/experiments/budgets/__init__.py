"""Experiments on what knowing more of a job would be worth under a budget."""

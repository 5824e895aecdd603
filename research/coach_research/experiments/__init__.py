"""The papers' experiments, one module each. `research/docs/experiments.md` explains how to add one.

A module has `replicate(parameters, seed) -> dict[str, float]`: one run of the whole experiment, its measures by name.
It may have `figures(results, parameters) -> dict[str, Figure]`; `results` has for each measure one value a seed.
"""

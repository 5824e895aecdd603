"""The papers' experiments, a module each. `docs/how-to/add-an-experiment.md` says how to add one.

A module has `replicate(parameters, seed) -> dict[str, float]`: one run of the whole experiment, its measures by
name. It may have `figures(results, parameters) -> dict[str, Figure]`; `results`: one value a seed for each measure.
"""

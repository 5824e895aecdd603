"""The papers' experiments, the evaluation of estimators, and the thesis's job files."""

"""The papers: their policies and experiments, the evaluation of estimators, and the thesis's job files."""

"""Estimators of speed, convergence and cost: from measured points to predictions with intervals."""

"""Commands that studies need: `coach experiment`, `train`, `estimators`, `convert`."""

"""The papers' policies, live and simulated; pyproject.toml has their names."""

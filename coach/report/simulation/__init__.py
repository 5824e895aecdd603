"""The answer of a simulation for others: a page, and tables."""

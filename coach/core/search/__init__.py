"""Which trial of a search gets the next epoch."""

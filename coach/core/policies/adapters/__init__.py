"""Adapters between the two kinds of policies and the drivers."""

"""The interface between policies and their drivers."""

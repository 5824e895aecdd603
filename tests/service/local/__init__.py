"""Tests of the operations on a state folder."""

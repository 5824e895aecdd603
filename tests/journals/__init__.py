"""Journals of every release, replayed by today's code."""

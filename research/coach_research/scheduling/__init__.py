"""Policies that answer events with actions on nodes (`api`), and how they and others decide for both drivers."""

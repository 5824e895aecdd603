"""Figures of jobs, plans and simulations."""

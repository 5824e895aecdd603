"""Workloads from files: Coach's own CSV of jobs, and readers of published traces. Coach ships none of the traces."""

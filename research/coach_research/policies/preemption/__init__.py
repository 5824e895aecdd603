"""Which jobs are preempted, and for which."""

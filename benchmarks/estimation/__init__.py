"""How well the curves and the speeds of jobs are predicted."""

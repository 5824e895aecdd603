"""The thesis's measurements again: its runs by load, and jobs on a cluster that is short of room."""

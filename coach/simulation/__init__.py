"""The virtual-time driver: the same decisions as live, on a cluster that exists only in numbers."""

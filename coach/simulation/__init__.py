"""Simulation in virtual time: the same decisions as on a real cluster, without the cluster."""

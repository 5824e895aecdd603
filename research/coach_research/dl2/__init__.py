"""Training of DL²'s network: the cluster in slots of time, and how the network learns from it."""

"""Where functions run: the local machine, Nuclio on Kubernetes, or virtual time."""

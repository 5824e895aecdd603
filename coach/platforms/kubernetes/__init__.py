"""The Kubernetes platform: each function is a pod, placed by the cluster's own scheduler."""

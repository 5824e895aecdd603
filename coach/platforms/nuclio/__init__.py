"""Nuclio on Kubernetes. So far: the resources it needs, as text."""

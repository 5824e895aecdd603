"""What everything that talks to a Kubernetes API server shares: requests, watches, and what pods and nodes report."""

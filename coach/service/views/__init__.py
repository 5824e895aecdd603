"""What the API shows in addition to jobs: why, figures, the cluster, what a request would do, and the stream."""

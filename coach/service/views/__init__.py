"""What the API shows beyond jobs: why, figures, the cluster, what a request would do, the stream, what is sent."""

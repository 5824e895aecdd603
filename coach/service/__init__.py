"""Coach as a service: the handler behind a local HTTP API, and its clients."""

"""Coach as a service: the handler behind a local HTTP API, and those who call it."""

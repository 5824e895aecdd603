"""Which nodes a policy names."""

"""The event engine: jobs on nodes in virtual time, in arrays."""

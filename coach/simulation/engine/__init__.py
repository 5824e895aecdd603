"""The event engine: jobs on nodes in virtual time, in arrays, for traces of up to a million jobs."""

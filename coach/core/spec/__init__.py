"""The job file's content as typed data: what a user may ask for."""

"""The job file's content as typed data."""

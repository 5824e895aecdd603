"""The model file of a job, and the files next to it."""

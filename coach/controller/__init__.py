"""The controller of a cluster: what users apply as TrainingJobs becomes jobs of the service, and their status."""

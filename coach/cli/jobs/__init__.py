"""Commands on jobs: run, look at, stop."""

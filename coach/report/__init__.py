"""Reports about jobs: rows, lines, CSV files and figures, all made from folded jobs and their records."""

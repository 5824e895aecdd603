"""What `coach simulate` asks: which jobs, on which cluster, under which policies."""

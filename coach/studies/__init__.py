"""The studies behind `coach simulate`: which jobs, on which cluster, under which policies."""

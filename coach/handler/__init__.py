"""The live driver: it journals what the reducer decides, carries it out on a platform, and feeds back what happened."""

"""The operations on a state folder in this process."""

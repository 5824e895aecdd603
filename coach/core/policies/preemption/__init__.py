"""Which job gives way to which."""

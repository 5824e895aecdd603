"""Job files: read, checked, converted; and their schema."""

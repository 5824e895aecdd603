"""A search: what is tried, how it is at present, and what drives it on a handler."""

"""Commands for researchers: simulate, compare, convert."""

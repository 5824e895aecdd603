"""How the members of a group are connected to its scheduler."""

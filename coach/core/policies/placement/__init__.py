"""How policies choose nodes."""

"""What policies and their drivers agree on."""

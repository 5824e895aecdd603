"""A job: what the user asks for, what can happen to it, what it asks of the world, and how it ends."""

"""The thesis's job files, converted to Coach's."""

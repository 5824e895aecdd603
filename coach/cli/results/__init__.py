"""Commands that hand over what jobs made: models, comparisons, files, figures."""

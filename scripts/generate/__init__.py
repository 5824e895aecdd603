"""What is written from the code: `python -m scripts.generate` writes the chart's CRDs and the reference pages anew."""

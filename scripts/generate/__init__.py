"""What is written from the code.

`python -m scripts.generate` writes the chart's CRDs, the schema, the API's document and its table of requests.
`make docs` completes its copy of the pages by `scripts.generate.pages`: commands' help, a job file's fields.
"""

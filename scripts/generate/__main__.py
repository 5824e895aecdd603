"""Writes all that is written from the code; see `scripts.generate`."""

from scripts.generate import crd, job_file_page, openapi

for file, text in crd.crd_files().items():
    file.write_text(text, encoding="utf-8")
job_file_page.SCHEMA.write_text(job_file_page.schema(), encoding="utf-8")
document = openapi.document()
openapi.PAGE.write_text(document, encoding="utf-8")
table = openapi.page(openapi.TABLE_PAGE.read_text(encoding="utf-8"), document)
openapi.TABLE_PAGE.write_text(table, encoding="utf-8")

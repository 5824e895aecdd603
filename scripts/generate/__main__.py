"""Writes all that is written from the code; see `scripts.generate`."""

from scripts.generate import cli_page, crd, job_file_page, openapi

for file, text in crd.crd_files().items():
    file.write_text(text, encoding="utf-8")
for page in (cli_page, job_file_page):
    page.PAGE.write_text(page.page(page.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
job_file_page.SCHEMA.write_text(job_file_page.schema(), encoding="utf-8")
openapi.PAGE.write_text(openapi.document(), encoding="utf-8")

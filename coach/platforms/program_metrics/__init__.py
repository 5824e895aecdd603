"""Where a program's metrics come from: what it prints, files that it writes, and what it sends.

`reader.Reader` makes reports of lines and of records; `files.Followed` has the records of files, `status.StatusServer`
those that a program sends. `collector.Collector` brings them together, in a process of its own.
"""

"""Keeping the folder of a job's checkpoints small: the last one, and the one it grew from."""

from __future__ import annotations

import logging

import fsspec

log = logging.getLogger(__name__)


def sweep(folder: str, *keep: str | None) -> None:
    """Delete the checkpoints in `folder` (a URI) other than those to `keep`. What cannot be deleted stays."""
    names = {uri.rpartition("/")[2] for uri in keep if uri}
    try:
        files, path = fsspec.core.url_to_fs(folder)
        for file in files.ls(path, detail=False):
            name = str(file).rpartition("/")[2]
            if name.endswith(".ckpt") and name not in names:
                files.rm_file(file)
    except (OSError, ValueError) as error:
        log.warning("old checkpoints in %s stay: %s", folder, error)

"""Guesses the framework of a model file from what it imports. The file is parsed, never run."""

from __future__ import annotations

import ast

from coach.core.spec.job import Framework

#: A larger file is not parsed: the tree takes many times its size.
MAX_PARSED_BYTES = 1 << 20

#: Packages that only a PyTorch model imports.
_PYTORCH = {"torch", "torchvision", "transformers"}


def guess(source: bytes) -> Framework | None:
    """The framework whose packages the source imports; None where it imports none or both, or is not Python."""
    if len(source) > MAX_PARSED_BYTES:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    pytorch, mxnet = bool(names & _PYTORCH), "mxnet" in names
    if pytorch == mxnet:
        return None
    return Framework.PYTORCH if pytorch else Framework.MXNET

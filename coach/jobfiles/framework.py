"""What a model file imports, and the framework that this shows. The file is parsed, never run."""

from __future__ import annotations

import ast

from coach.core.spec.job import Framework

#: A larger file is not parsed: the tree takes many times its size.
MAX_PARSED_BYTES = 1 << 20

#: Packages that only a PyTorch model imports.
_PYTORCH = {"torch", "torchvision", "transformers"}


def guess(source: bytes) -> Framework | None:
    """The framework whose packages the source imports; None where it imports none or both, or is not Python."""
    names = {name.partition(".")[0] for name in imported(source)}
    pytorch, mxnet = bool(names & _PYTORCH), "mxnet" in names
    if pytorch == mxnet:
        return None
    return Framework.PYTORCH if pytorch else Framework.MXNET


def imported(source: bytes, package: str = "") -> set[str]:
    """The dotted names that a file of `package` may import; of `from a import b` also `a.b`."""
    if len(source) > MAX_PARSED_BYTES:
        return set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package and node.level else []
            if node.level > len(parts):
                continue  # beyond the top, where Python finds nothing either
            base = ".".join(filter(None, [*parts[: len(parts) + 1 - node.level], node.module]))
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names

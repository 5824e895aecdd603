"""What a model file imports and defines, and the framework that this shows. The file is parsed, never run."""

from __future__ import annotations

import ast
from typing import NamedTuple

from coach.core.spec.training import Framework

#: A larger file is not parsed: the tree takes many times its size.
MAX_PARSED_BYTES = 1 << 20

#: Packages that only a PyTorch model imports.
_PYTORCH = {"torch", "torchvision", "transformers"}
#: Packages of programs with a command line.
_COMMAND_LINES = {"argparse", "absl", "click", "docopt", "fire", "hydra", "tyro", "typer"}
#: With these any name may be defined.
_ANY_NAME = {"exec", "globals", "setattr", "vars"}


def guess(source: bytes) -> Framework | None:
    """The framework whose packages the source imports; None where it imports none or both, or is not Python."""
    names = {name.partition(".")[0] for name in imported(source)}
    pytorch, mxnet = bool(names & _PYTORCH), "mxnet" in names
    if pytorch == mxnet:
        return None
    return Framework.PYTORCH if pytorch else Framework.MXNET


class Defined(NamedTuple):
    """What running a file defines: its names, without those of what it makes when it is run, and those of classes of
    networks; whether it is a program.
    """

    names: frozenset[str]
    networks: tuple[str, ...]
    is_program: bool


def defined(source: bytes) -> Defined | None:
    """What a file defines at its top level; None where that is not known."""
    if (tree := _parsed(source)) is None:
        return None
    left: list[ast.AST] = [tree]
    names, networks, is_program = set[str](), list[str](), bool(imported(source) & _COMMAND_LINES)
    while left:
        node = left.pop(0)
        if isinstance(node, ast.Name):
            if node.id in _ANY_NAME:
                return None
            is_program = is_program or node.id == "__name__"
            names |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            if any(ast.unparse(base).endswith(("Module", "Block")) for base in bases):
                networks.append(node.name)
            continue
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if not ast.unparse(node.value.func).endswith("partial"):
                node.targets = []  # `net = Net()` is a network, and makes none
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return None
            names.add(node.asname or node.name.partition(".")[0])
        is_program = is_program or isinstance(node, ast.For | ast.While)
        left += ast.iter_child_nodes(node)
    return Defined(frozenset(names), tuple(networks), is_program)


def imported(source: bytes, package: str = "") -> set[str]:
    """The dotted names that a file of `package` may import; of `from a import b` also `a.b`."""
    names = set[str]()
    for node in ast.walk(_parsed(source) or ast.Module([], [])):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package and node.level else []
            if node.level > len(parts):
                continue  # beyond the top, where Python finds nothing either
            base = ".".join(filter(None, [*parts[: len(parts) + 1 - node.level], node.module]))
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def _parsed(source: bytes) -> ast.Module | None:
    """None for what is too large, or no Python."""
    try:
        return ast.parse(source) if len(source) <= MAX_PARSED_BYTES else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

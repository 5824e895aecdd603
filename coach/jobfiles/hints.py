"""The schema in words: what may stand in a field."""

from __future__ import annotations

from coach.core.spec.types import IN_WORDS, SpecModel
from coach.jobfiles.diagnostics import show
from coach.jobfiles.schema import Schema, branches, lookup


def right_for(at: tuple[str, ...], kind: type[SpecModel]) -> str:
    """What would be right in the field at a path of keys of a document, with an example where one helps."""
    node = lookup(at, kind)
    if not node:
        return "one plain value" if node == {} else "another value"
    examples = [example for example in node.get("examples", []) if not isinstance(example, dict)]
    such_as = f", such as {show(examples[0])}" if examples and "one of" not in allowed(node) else ""
    return allowed(node) + such_as


def allowed(node: Schema) -> str:
    """What a field may hold."""
    part, word = branches(node)
    options = []
    if part is not None:
        required = ", ".join(part.get("required", []))
        known = ", ".join(list(part.get("properties", {}))[:4])
        options.append(f"a mapping with {required}" if required else f"a mapping of {known or 'words'}")
    if word is not None:
        options.append(_enumeration(word) or IN_WORDS.get(word.get("pattern", ""), "text"))
    if not options and node.get("type") == "array":
        options.append("a list of words")
    if not options and node.get("type") == "boolean":
        options.append("true" if "const" in node else "true or false")
    if not options:
        options.append(IN_WORDS[node["pattern"]] if "pattern" in node else _number(node))
    return " or ".join(options)


def _enumeration(node: Schema) -> str:
    """The words of an enumeration; empty where any text will do."""
    choices = [node["const"]] if "const" in node else node.get("enum", [])
    return f"one of {', '.join(choices)}" if len(choices) > 1 else "".join(choices)


def _number(node: Schema) -> str:
    noun = "a whole number" if node["type"] == "integer" else "a number"
    low, above, high = node.get("minimum"), node.get("exclusiveMinimum"), node.get("maximum")
    if low is not None and high is not None:
        return f"{noun} from {show(low)} to {show(high)}"
    if above is not None and high is not None:
        return f"{noun} above {show(above)}, at most {show(high)}"
    return noun

"""The scalar types of the job file: text, numbers, quantities and their bounds; and the errors about mistakes.

Nothing is coerced: `true` is not a number and `5` is not a text.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    Strict,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from coach.core.spec import quantities

SCHEMES = ("file", "s3", "gs")

#: Each pattern in words, for the message about a text that does not match.
IN_WORDS = {
    quantities.CPU_PATTERN: "cores: a whole number, or a quantity",
    quantities.MEMORY_PATTERN: "memory: a number with Ki, Mi, Gi, k, M or G, or bytes",
    quantities.DURATION_PATTERN: "a whole number of seconds, or a duration",
}
#: Patterns of keys that a file's author makes up.
OF_KEYS: set[str] = set()


def form(
    pattern: str, words: str, *, of_key: bool = False, min_length: int | None = None, max_length: int | None = None
) -> StringConstraints:
    """Text that matches `pattern`, which is `words`."""
    IN_WORDS[pattern] = words
    if of_key:
        OF_KEYS.add(pattern)
    return StringConstraints(pattern=pattern, min_length=min_length, max_length=max_length)


def mistake(problem: str, right: str) -> PydanticCustomError:
    """A mistake in one field: the problem, and what would be right."""
    return PydanticCustomError("mistake", "{problem} - {right}", {"problem": problem, "right": right})


def _uri(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in SCHEMES:
        raise mistake(f"no such kind of URI: {scheme}://", "a path, or file://, s3:// or gs:// and a path")
    if separator and not rest.strip("/"):
        raise mistake("a URI without a path", f"{scheme}:// and a path")
    return text


def _whole(value: Any, instead: str) -> Any:
    """A float as an int. A fraction is refused, as by the Kubernetes API; any other value is returned as it is."""
    if isinstance(value, float) and math.isfinite(value):
        if value != int(value):
            raise mistake("a fraction without a unit", instead)
        return int(value)
    return value


def _quantity(value: Any) -> Any:
    """A whole number as a quantity: cores, or bytes."""
    value = _whole(value, "a quantity such as 500m for cores, 512Mi for memory")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15:
        return str(value)
    return value


def _cpu(text: str) -> str:
    if not 0 < quantities.cores(text) <= 1024:
        raise mistake("CPU out of bounds", "more than 0 and at most 1024 cores")
    return text


def _memory(text: str) -> str:
    if not 1 / 64 <= quantities.gib(text) <= 65536:
        raise mistake("memory out of bounds", "16Mi to 64Ti")
    return text


def _seconds(value: Any) -> Any:
    """Seconds, from a duration as text or from a whole number of seconds."""
    if not isinstance(value, str):
        return _whole(value, "a duration with its unit, such as 1500ms")
    try:
        return quantities.seconds(value)
    except ValueError:
        raise mistake("not a duration", "a number and ms, s, m, h or d, such as 90s or 1h30m") from None


def _only_true(value: bool) -> bool:
    if not value:
        raise mistake("not true", "true; or leave the key out")
    return value


def _model_argument(value: Any) -> Any:
    """One plain value, or a list of at most 100, for a function of a model file."""
    if isinstance(value, list | tuple):
        if len(value) > 100:
            raise mistake("too long a list", "at most 100 plain values")
        if any(isinstance(each, list | tuple) for each in value):
            raise mistake("a list in a list", "one plain value, or a list of them")
        return tuple(map(_model_argument, value))
    if isinstance(value, str):
        if len(value) > 1000:
            raise mistake("too long a text", "at most 1,000 characters")
        return value
    return _argument(value)


def _argument(value: Any, longest: int = 4) -> Any:
    """One plain value of an optimizer's argument, or a few numbers."""
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= longest or not all(_is_number(each) for each in value):
            raise mistake("not a list of numbers", f"1 to {longest} numbers")
        return tuple(_argument(each) for each in value)
    if isinstance(value, str):
        if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", value):
            raise mistake("not a plain word", "a number, true, false, or a word of letters, digits and _.:-")
    elif isinstance(value, int):
        if abs(value) > 2**53:
            raise mistake("too large a number", "at most 2^53")
    elif not isinstance(value, float):
        raise mistake("not one plain value", "a number, true, false, a word or a list of numbers")
    elif not math.isfinite(value):
        raise mistake("not a finite number", "a finite number")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def no_default(schema: dict[str, Any]) -> None:
    """For `json_schema_extra` of a field whose default depends on other fields: an API server fills in none."""
    schema.pop("default", None)


#: Largest number of characters of a path or URI.
LONGEST_URI = 2048

StrictBool = Annotated[bool, Strict()]
OnlyTrue = Annotated[StrictBool, AfterValidator(_only_true), WithJsonSchema({"type": "boolean", "const": True})]
StrictInt = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Text = Annotated[str, Strict()]
URI_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
Uri = Annotated[
    Text,
    form(
        URI_PATTERN,
        "a path or URI without control characters, at most 2048 characters",
        min_length=1,
        max_length=LONGEST_URI,
    ),
    AfterValidator(_uri),
]
Sha256 = Annotated[Text, form(r"^[0-9a-f]{64}$", "64 hexadecimal digits in lower case")]
Currency = Annotated[
    Text, form(r"^([A-Z]{3}|gpuh|coreh|h)$", "three capital letters, or hours: gpuh (of GPUs), coreh (of cores), h")
]
_NAME = "lower-case letters, digits and -, at most 40, with a letter or digit at both ends"
Identifier = Annotated[Text, form(r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$", _NAME)]
JobName = Annotated[Text, form(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", _NAME, min_length=1, max_length=40)]
ObjectName = Annotated[
    Text,
    form(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", "the name of an object of the cluster: a DNS name in lower case"),
]
#: Extended resources of Kubernetes whose devices are GPUs, or parts of them.
GPU_RESOURCE = r"^(nvidia\.com/(gpu(\.shared)?|mig-[a-z0-9.]{1,40})|amd\.com/gpu|gpu\.intel\.com/(i915|xe))$"
GpuResource = Annotated[
    Text,
    form(
        GPU_RESOURCE,
        "nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb and the like, amd.com/gpu, "
        "gpu.intel.com/i915 or gpu.intel.com/xe",
    ),
]
SecretKeyName = Annotated[Text, form(r"^[-._a-zA-Z0-9]{1,253}$", "a key of a Secret: letters, digits and -._")]
MountPath = Annotated[
    Text, form(r"^/[^\x00-\x1f\x7f:]{1,254}$", "a folder by its whole path, such as /data", of_key=True)
]
Image = Annotated[Text, form(r"^[A-Za-z0-9][-A-Za-z0-9._/:@]{0,254}$", "the name of a container image")]
#: The pattern bounds its length too; an API server's rules about it need that as a number.
MetricName = Annotated[
    Text,
    form(
        r"^[A-Za-z]([A-Za-z0-9_.@/' -]{0,62}[A-Za-z0-9_.@/-])?$",
        "a metric's name: a letter, then at most 63 letters, digits, spaces and _.@/'-",
        of_key=True,
    ),
    Field(json_schema_extra={"maxLength": 64}),
]
VariableName = Annotated[
    Text, form(r"^[A-Za-z_][A-Za-z0-9_]{0,254}$", "the name of an environment variable", of_key=True)
]
Price = Annotated[Number, Field(ge=0, le=1e6)]
_INT_OR_STRING: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
Cpu = Annotated[
    Text,
    BeforeValidator(_quantity),
    StringConstraints(pattern=quantities.CPU_PATTERN),
    AfterValidator(_cpu),
    WithJsonSchema({**_INT_OR_STRING, "pattern": quantities.CPU_PATTERN, "format": "cpu"}),
]
Memory = Annotated[
    Text,
    BeforeValidator(_quantity),
    StringConstraints(pattern=quantities.MEMORY_PATTERN),
    AfterValidator(_memory),
    WithJsonSchema({**_INT_OR_STRING, "pattern": quantities.MEMORY_PATTERN, "format": "memory"}),
]
#: Seconds, to the millisecond; written as a duration.
Duration = Annotated[
    Number,
    BeforeValidator(_seconds),
    Field(ge=0, le=365 * 86400),
    AfterValidator(lambda value: round(value, 3)),
    PlainSerializer(quantities.duration, return_type=str),
    WithJsonSchema({**_INT_OR_STRING, "pattern": quantities.DURATION_PATTERN, "format": "duration"}),
]


#: An argument of an optimizer: true, false, a number, a word or at most 4 numbers.
Argument = Annotated[Any, BeforeValidator(_argument)]
#: An argument of a schedule: the same, with at most 100 numbers.
ScheduleArgument = Annotated[Any, BeforeValidator(lambda value: _argument(value, 100))]
#: PyTorch's schedules have arguments such as T_max.
ScheduleArgumentName = Annotated[
    str, form(r"^[A-Za-z][A-Za-z0-9_]{0,39}$", "the name of an argument, such as step_size", of_key=True)
]
ScheduleName = Annotated[Text, form(r"^[A-Z][A-Za-z0-9]{0,39}$", "the name of a class in torch.optim.lr_scheduler")]
#: An argument of a model file's functions: true, false, a number, a text, or a list of at most 100 of them.
ModelArgument = Annotated[Any, BeforeValidator(_model_argument)]
ParameterName = Annotated[
    str, form(r"^[a-zA-Z_][a-zA-Z0-9_]{0,79}$", "the name of a function's parameter", of_key=True)
]
SiblingName = Annotated[
    str,
    form(
        r"^[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*\.py$",
        "a Python file in the model file's folder or below it, such as parts.py or parts/loss.py",
        of_key=True,
        max_length=200,
    ),
]
PythonName = Annotated[
    Text, form(r"^[A-Za-z_][A-Za-z0-9_]{0,79}$", "the name of a function or class in the model file")
]
OptimizerName = Annotated[Text, form(r"^[A-Za-z][A-Za-z0-9_]{0,39}$", "the name of one of the framework's optimizers")]
ArgumentName = Annotated[str, form(r"^[a-z][a-z0-9_]{0,39}$", "the name of an argument, such as momentum", of_key=True)]
LabelKey = Annotated[
    Text,
    form(
        r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        "a label's name as in Kubernetes, such as team or example.com/team",
        of_key=True,
    ),
]
LabelValue = Annotated[
    Text,
    form(
        r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
        "at most 63 letters, digits and -_. with a letter or digit at both ends",
    ),
]


@dataclass(frozen=True, slots=True)
class CrossFieldError:
    """Fields that conflict: `at` is the one to change, `others` are those it conflicts with.

    Both are paths of YAML keys from the part that found the conflict.
    """

    at: tuple[str, ...]
    problem: str
    right: str
    others: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        where = ".".join(self.at)
        return f"{where}: {self.problem} - {self.right}" if where else f"{self.problem} - {self.right}"


def conflict(at: str, problem: str, right: str, *others: str) -> CrossFieldError:
    """The same with paths as `budget.currency`."""
    return CrossFieldError(_path(at), problem, right, tuple(map(_path, others)))


def _path(keys: str) -> tuple[str, ...]:
    return tuple(keys.split(".")) if keys else ()


def conflicts(*found: CrossFieldError) -> PydanticCustomError:
    """All conflicts of one part as one error, which has them in `ctx["conflicts"]`."""
    return PydanticCustomError("conflicts", "{text}", {"text": "; ".join(map(str, found)), "conflicts": found})


class SpecModel(BaseModel):
    """Base of all parts of a job file: frozen, without unknown keys, camelCase in YAML and JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )

    def _conflicts(self) -> Iterator[CrossFieldError]:
        """The fields of this part that do not go together."""
        yield from ()

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if found := list(self._conflicts()):
            raise conflicts(*found)
        return self

    @classmethod
    def meaning(cls, field: str) -> str | None:
        """What a field means: the text below it, which is read from the source when it is asked for."""
        kinds = (kind for kind in cls.__mro__ if issubclass(kind, SpecModel))
        found = (_texts(kind.__module__).get((kind.__name__, field)) for kind in kinds)
        return next(filter(None, found), cls.model_fields[field].description)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, field in cls.model_fields.items():
            if words := cls.meaning(name):
                properties[field.alias or name]["description"] = words
        return schema


@cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """The texts below fields, by class and field."""
    kinds = [node for node in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(node, ast.ClassDef)]
    found: dict[tuple[str, str], str] = {}
    for kind in kinds:
        for pair in pairwise(kind.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(field)), ast.Expr(ast.Constant(str(text))):
                    found[kind.name, field] = " ".join(text.split())
    return found

"""The scalar types of the job file: text, numbers, quantities and their bounds; and the errors about mistakes.

Nothing is coerced: `true` is not a number and `5` is not a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from coach.core.spec import quantities

SCHEMES = ("file", "s3", "gs")

LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"

ARGUMENT_NAME_PATTERN = r"^[a-z][a-z0-9_]{0,39}$"
_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_IDENTIFIER_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
_OPTIMIZER_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,39}$"
_IMAGE_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9._/:@]{0,254}$"
_CONFIG_MAP_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_CURRENCY_PATTERN = r"^[A-Z]{3}$"
_SHA256_PATTERN = r"^[0-9a-f]{64}$"
_PYTHON_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,79}$"
#: PyTorch's schedules have arguments such as T_max.
SCHEDULE_ARGUMENT_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,39}$"
_SCHEDULE_PATTERN = r"^[A-Z][A-Za-z0-9]{0,39}$"
METRIC_PATTERN = r"^[A-Za-z][A-Za-z0-9_.@/-]{0,63}$"
#: Of a function's parameter.
PARAMETER_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]{0,79}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,254}$"
WORD_PATTERN = r"^[^\x00]*$"
_KEY_PATTERN = r"^[-._a-zA-Z0-9]{1,253}$"
MOUNT_PATTERN = r"^/[^\x00-\x1f\x7f:]{1,254}$"
SIBLING_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*\.py$"
URI_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"

#: Each pattern in words, for the message about a text that does not match.
IN_WORDS = {
    LABEL_KEY_PATTERN: "a label's name as in Kubernetes, such as team or example.com/team",
    _LABEL_VALUE_PATTERN: "at most 63 letters, digits and -_. with a letter or digit at both ends",
    ARGUMENT_NAME_PATTERN: "the name of an argument, such as momentum",
    _NAME_PATTERN: "lower-case letters, digits and -, at most 40, with a letter or digit at both ends",
    _IDENTIFIER_PATTERN: "lower-case letters, digits and -, at most 40, with a letter or digit at both ends",
    SCHEDULE_ARGUMENT_PATTERN: "the name of an argument, such as step_size",
    _OPTIMIZER_PATTERN: "the name of one of the framework's optimizers",
    _PYTHON_NAME_PATTERN: "the name of a function or class in the model file",
    _SCHEDULE_PATTERN: "the name of a class in torch.optim.lr_scheduler",
    _IMAGE_PATTERN: "the name of a container image",
    _CONFIG_MAP_PATTERN: "the name of an object of the cluster: a DNS name in lower case",
    _KEY_PATTERN: "a key of a Secret: letters, digits and -._",
    MOUNT_PATTERN: "a folder by its whole path, such as /data",
    _CURRENCY_PATTERN: "three capital letters",
    METRIC_PATTERN: "a metric's name: a letter, then at most 63 letters, digits and _.@/-",
    PARAMETER_PATTERN: "the name of a function's parameter",
    VARIABLE_PATTERN: "the name of an environment variable",
    WORD_PATTERN: "text",
    SIBLING_PATTERN: "a Python file in the model file's folder or below it, such as parts.py or parts/loss.py",
    _SHA256_PATTERN: "64 hexadecimal digits in lower case",
    URI_PATTERN: "a path or URI without control characters, at most 2048 characters",
    quantities.CPU_PATTERN: "cores: a whole number, or a quantity",
    quantities.MEMORY_PATTERN: "memory: a number with Ki, Mi, Gi, k, M or G, or bytes",
    quantities.DURATION_PATTERN: "a whole number of seconds, or a duration",
}


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
Uri = Annotated[
    Text,
    StringConstraints(min_length=1, max_length=LONGEST_URI, pattern=URI_PATTERN),
    AfterValidator(_uri),
]
Sha256 = Annotated[Text, StringConstraints(pattern=_SHA256_PATTERN)]
Currency = Annotated[Text, StringConstraints(pattern=_CURRENCY_PATTERN)]
Identifier = Annotated[Text, StringConstraints(pattern=_IDENTIFIER_PATTERN)]
JobName = Annotated[Text, StringConstraints(min_length=1, max_length=40, pattern=_NAME_PATTERN)]
ObjectName = Annotated[Text, StringConstraints(pattern=_CONFIG_MAP_PATTERN)]
SecretKeyName = Annotated[Text, StringConstraints(pattern=_KEY_PATTERN)]
MountPath = Annotated[Text, StringConstraints(pattern=MOUNT_PATTERN)]
Image = Annotated[Text, StringConstraints(pattern=_IMAGE_PATTERN)]
#: The pattern bounds its length too; an API server's rules about it need that as a number.
MetricName = Annotated[Text, StringConstraints(pattern=METRIC_PATTERN), Field(json_schema_extra={"maxLength": 64})]
VariableName = Annotated[Text, StringConstraints(pattern=VARIABLE_PATTERN)]
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
ScheduleArgumentName = Annotated[str, StringConstraints(pattern=SCHEDULE_ARGUMENT_PATTERN)]
ScheduleName = Annotated[Text, StringConstraints(pattern=_SCHEDULE_PATTERN)]
#: An argument of a model file's functions: true, false, a number, a text, or a list of at most 100 of them.
ModelArgument = Annotated[Any, BeforeValidator(_model_argument)]
ParameterName = Annotated[str, StringConstraints(pattern=PARAMETER_PATTERN)]
SiblingName = Annotated[str, StringConstraints(max_length=200, pattern=SIBLING_PATTERN)]
PythonName = Annotated[Text, StringConstraints(pattern=_PYTHON_NAME_PATTERN)]
OptimizerName = Annotated[Text, StringConstraints(pattern=_OPTIMIZER_PATTERN)]
ArgumentName = Annotated[str, StringConstraints(pattern=ARGUMENT_NAME_PATTERN)]
LabelKey = Annotated[Text, StringConstraints(pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[Text, StringConstraints(pattern=_LABEL_VALUE_PATTERN)]


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

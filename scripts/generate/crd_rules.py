"""The rules between fields that an API server checks, in CEL: what may change of a job, and what people get wrong most.

`coach validate` says all else before a job is applied, and the controller in the job's condition Failed.
"""

from __future__ import annotations

import json
from typing import Any

Rule = dict[str, Any]
Schema = dict[str, Any]

#: What may change of a job that exists.
MUTABLE = ("budget", "suspend", "priority")


def rule(expression: str, message: str, field: str = "", values: str = "") -> Rule:
    """A rule of a CRD. `field`: the wrong field, relative to the rule's own.

    `values`: CEL expressions for the message's %d and %s.
    """
    found = {"rule": expression, "message": message}
    if values:  # the estimated cost of `+ string(number)` would be too high
        found = {"rule": expression, "messageExpression": f"{json.dumps(message)}.format([{values}])"}
    return {**found, "fieldPath": field} if field else found


_EITHER = "amount and currency, an account, or unlimited: true alone"
_MEASURES = "one of loss, accuracy and metric"


def _stays(field: str) -> Rule:
    """The rule of an optional field of a budget that may not change."""
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return rule(same, "cannot change - the one of before; or another job", f".{field}")


#: By the path of the field in `spec`.
RULES: dict[tuple[str, ...], list[Rule]] = {
    (): [
        rule("has(self.model) || has(self.program)", "required - a model file; or a program", ".model"),
        rule("!has(self.program) || has(self.image)", "required - the image that the program runs in", ".image"),
        rule(
            "has(self.program) || has(self.target) || has(self.budget.amount) || has(self.timeLimit) "
            "|| has(self.maxEpochs)",
            "required where nothing else ends the job - a target, an amount as budget, timeLimit or maxEpochs",
            ".target",
        ),
    ],
    ("workers",): [
        rule(
            "!has(self.min) || !has(self.max) || self.min <= self.max",
            "more than max, which is %d - at most max",
            ".min",
            "self.max",
        )
    ],
    ("target",): [
        rule(
            "[has(self.loss), has(self.accuracy), has(self.metric)].filter(one, one).size() == 1",
            f"no measure, or several - {_MEASURES}",
        )
    ],
    ("budget",): [
        rule(
            "has(self.unlimited) ? !has(self.amount) && !has(self.currency) && !has(self.account) : "
            "has(self.amount) == has(self.currency) && (has(self.amount) || has(self.account))",
            f"no amount, or not by itself - {_EITHER}",
        ),
        *map(_stays, ("unlimited", "currency", "account", "chanceOfRunningOut")),
        rule(
            "has(self.amount) == has(oldSelf.amount) && (!has(self.amount) || self.amount >= oldSelf.amount)",
            "less than before - that or more",
            ".amount",
        ),
    ],
}


def visible(node: Schema) -> bool:
    """Whether rules can see into a field of this structural schema."""
    return "type" in node or "x-kubernetes-int-or-string" in node


def unchanged(fields: dict[str, Schema], required: list[str]) -> tuple[list[Rule], Rule]:
    """Rules of `spec` on what may not change, and the rule of each field that may not."""
    words = f"cannot change - only {', '.join(MUTABLE[:-1])} and {MUTABLE[-1]} may; delete the job and create it again"
    optional = [
        key
        for key, node in fields.items()
        if key not in MUTABLE and key not in required and "default" not in node and visible(node)
    ]
    of_all = [rule(f"has(self.{key}) == has(oldSelf.{key})", words, f".{key}") for key in optional]
    # What rules cannot see into, they see to be equal or not as a part of the whole.
    for hidden in (key for key, node in fields.items() if not visible(node)):
        same = [
            *(f"self.{key} == oldSelf.{key}" for key in fields if key not in (*optional, hidden)),
            *(
                f"(has(self.{key}) ? has(oldSelf.{key}) && self.{key} == oldSelf.{key} : !has(oldSelf.{key}))"
                for key in optional
            ),
        ]
        of_all.append(rule(f"self == oldSelf || !({' && '.join(same)})", f"{hidden}: {words}"))
    return of_all, rule("self == oldSelf", words)

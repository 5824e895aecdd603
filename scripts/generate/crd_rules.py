"""The rules between fields as the API server checks them: `coach.core.spec`'s validators in CEL, in the same words.

CEL cannot see into a field that may be a word or an object (`prices`), nor at an optimizer's further arguments. What
`coach.core.spec` and `coach validate` refuse there, the controller refuses.
"""

from __future__ import annotations

import json
from typing import Any

from coach.core.spec.job import SERVED_OPTIMIZERS
from coach.core.spec.program import GOAL_WORDS
from coach.core.spec.types import SCHEMES, URI_PATTERN

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


def _within_limits(role: str, least: str, most: str) -> Rule:
    count = f"self.policy.{role}"
    return rule(
        f"self.policy.name != 'static' || !has({count}) || ({least} <= {count} && {count} <= {most})",
        f"outside the job's limits - %d to %d, or other limits in spec.{role}",
        f".policy.{role}",
        f"{least}, {most}",
    )


_PYTORCH = "(has(self.framework) && self.framework == 'pytorch')"


_PS_LITE = "self.parameterServer == 'ps-lite'"
#: Of a PyTorch job.
_ALL_REDUCE = "(!has(self.servers) || self.servers.max == 0)"
_SERVED = f"!has(self.optimizer) || self.optimizer.name.lowerAscii() in {list(SERVED_OPTIMIZERS)}"


def _of_models(rule: Rule) -> Rule:
    """The rule for jobs that train a model."""
    return {**rule, "rule": f"has(self.program) || ({rule['rule']})"}


def _of_mxnet(rule: Rule) -> Rule:
    """The rule for MXNet jobs."""
    return {**rule, "rule": f"has(self.program) || {_PYTORCH} || ({rule['rule']})"}


def _of_pytorch(rule: Rule) -> Rule:
    """The rule for PyTorch jobs."""
    return {**rule, "rule": f"!{_PYTORCH} || ({rule['rule']})"}


def _with_servers(rule: Rule) -> Rule:
    """The rule for jobs with parameter servers."""
    return {**rule, "rule": f"has(self.program) || ({_PYTORCH} && {_ALL_REDUCE}) || ({rule['rule']})"}


def _of_programs(rule: Rule) -> Rule:
    """The rule for jobs that run a program."""
    return {**rule, "rule": f"!has(self.program) || ({rule['rule']})"}


def _limit(role: str, bound: str, default: int) -> str:
    """A limit of `workers` or `servers`, which the job may leave out."""
    return f"(has(self.{role}) && has(self.{role}.{bound}) ? self.{role}.{bound} : {default})"


_STATIC = "required - a count, for the policy static"


def _only_static(role: str) -> Rule:
    return rule(
        f"self.name == 'static' || !has(self.{role})",
        "has no meaning for the policy coach - together with name: static, or spec.workers and spec.servers for limits",
        f".{role}",
    )


_EITHER = "amount and currency, an account, or unlimited: true alone"
_NOT_EMPTY = rule("self.min <= self.max", "more than max, which is %d - at most max", ".min", "self.max")
_LEAST, _MOST = _limit("workers", "min", 1), _limit("workers", "max", 4)
_OWN = "a program has its own - leave `%s` out"

#: What `usual_goal` finds in the name of a metric.
_SHOWS_ITS_GOAL = f"self.metric.matches('(?i)(^|[^a-z0-9])({'|'.join(sorted(GOAL_WORDS))})([^a-z0-9]|$)')"

#: By the path of the field in `spec`.
_RULES: dict[tuple[str, ...], list[Rule]] = {
    (): [
        rule("has(self.model) || has(self.program)", "required - a model file; or a program", ".model"),
        _of_models(rule("has(self.data)", "required - the data set, and its format", ".data")),
        *(
            _of_programs(rule(f"!has(self.{key})", _OWN % key, f".{key}"))
            for key in (
                "model",
                "data",
                "optimizer",
                "autocast",
                "clip",
                "microBatch",
                "evaluationBatch",
                "epoch",
                "init",
            )
        ),
        _of_programs(rule("has(self.image)", "required - the image that the program runs in", ".image")),
        _of_programs(
            rule(
                "!has(self.framework) || self.framework == 'any'",
                "a program has any - leave `framework` out",
                ".framework",
            )
        ),
        _of_models(
            rule(
                "!has(self.framework) || self.framework != 'any'",
                "only a program has any - mxnet or pytorch",
                ".framework",
            )
        ),
        rule(
            "!has(self.target) || !has(self.objective) || !self.objective.startsWith('best-')",
            "has no meaning for a job with a target - soonest or cheapest; or leave `target` out",
            ".objective",
        ),
        rule(
            "has(self.target) || !has(self.objective) || self.objective.startsWith('best-')",
            "needs a target - best-loss or best-accuracy; or a target",
            ".objective",
        ),
        _of_models(
            rule(
                "has(self.target) || has(self.budget.amount) || has(self.timeLimit) || has(self.maxEpochs)",
                "required where nothing else ends the job - a target, an amount as budget, timeLimit or maxEpochs",
                ".target",
            )
        ),
        _of_models(rule(f"{_LEAST} <= {_MOST}", "more than max, which is %d - at most max", ".workers.min", _MOST)),
        _of_models(
            rule(
                f"{_MOST} <= self.batchSize",
                "more than batchSize, which is %d - at most one worker a sample",
                ".workers.max",
                "self.batchSize",
            )
        ),
        _of_models(_within_limits("workers", _LEAST, _MOST)),
        _with_servers(_within_limits("servers", _limit("servers", "min", 1), _limit("servers", "max", 4))),
        _with_servers(rule("self.policy.name != 'static' || has(self.policy.servers)", _STATIC, ".policy.servers")),
        _of_mxnet(
            rule(
                "!has(self.servers) || self.servers.min > 0",
                "too small - 1 or more; only PyTorch jobs train without parameter servers",
                ".servers.min",
            )
        ),
        _of_mxnet(
            rule(
                "!has(self.optimizer) || !has(self.optimizer.schedule)",
                "has no meaning for an MXNet job - no schedule; only PyTorch jobs have them",
                ".optimizer.schedule",
            )
        ),
        *(
            _of_mxnet(
                rule(
                    off,
                    f"has no meaning for an MXNet job - leave `{field}` out; only PyTorch jobs have it",
                    f".{field}",
                )
            )
            for field, off in (("deterministic", "!self.deterministic"), ("autocast", "!has(self.autocast)"))
        ),
        _of_mxnet(
            rule(
                "self.data.readers == 0",
                "has no meaning for an MXNet job - leave it out: the arrays of an MXNet job are in memory",
                ".data.readers",
            )
        ),
        _of_mxnet(
            rule(
                "self.mode != 'async' || !has(self.clip)",
                "not in asynchronous mode - leave `clip` out: servers apply each worker's gradients by themselves",
                ".clip",
            )
        ),
        _of_mxnet(
            rule(
                f"self.mode != 'async' || {_PS_LITE}",
                "elastic servers are synchronous - sync; or parameterServer: ps-lite",
                ".mode",
            )
        ),
        _of_mxnet(
            rule(
                f"{_PS_LITE} || {_SERVED}",
                f"does not run on elastic servers - {', '.join(SERVED_OPTIMIZERS)}; or parameterServer: ps-lite",
                ".optimizer.name",
            )
        ),
        _of_pytorch(
            rule(
                _PS_LITE,
                "the servers of a PyTorch job are always elastic - leave `parameterServer` out",
                ".parameterServer",
            )
        ),
        _of_pytorch(
            rule(
                f"{_ALL_REDUCE} || {_SERVED}",
                f"does not run on elastic servers - {', '.join(SERVED_OPTIMIZERS)}; or servers: {{max: 0}}",
                ".optimizer.name",
            )
        ),
        _of_pytorch(
            rule(
                f"!{_ALL_REDUCE} || !has(self.policy.servers) || self.policy.servers == 0",
                "a PyTorch job without `servers` trains by all-reduce - leave it out, or say spec.servers",
                ".policy.servers",
            )
        ),
        _of_pytorch(
            rule(
                "self.mode == 'sync'",
                "workers of a PyTorch job step together - sync; or leave `mode` out",
                ".mode",
            )
        ),
    ],
    ("model",): [
        rule(
            "!has(self.net) || !self.file.matches('[.]py:[A-Za-z_][A-Za-z0-9_]*$') "
            "|| self.file.endsWith('.py:' + self.net)",
            "not the one that file names - one of the two",
            ".net",
        )
    ],
    ("optimizer",): [
        rule(
            "has(self.learningRate) || has(self.lr)",
            "required - a number above 0, at most 1000",
            ".learningRate",
        ),
        rule("!has(self.learningRate) || !has(self.lr)", "said twice - learningRate alone", ".lr"),
    ],
    ("data",): [
        rule(
            "has(self.uri) || self.format in ['digits8x8', 'custom']",
            "required - where the %s data set is",
            ".uri",
            "self.format",
        ),
        rule(
            "!has(self.uri) || self.format != 'digits8x8'",
            "has no meaning for digits8x8 - no uri: scikit-learn ships these digits",
            ".uri",
        ),
    ],
    ("target",): [
        rule(
            "has(self.loss) || has(self.accuracy) || has(self.metric)",
            "no measure - one of loss, accuracy and metric",
        ),
        *(
            rule(
                f"!has(self.{first}) || !has(self.{second})",
                f"a second measure after {first} - only one of loss, accuracy and metric",
                f".{second}",
            )
            for first, second in (("loss", "accuracy"), ("loss", "metric"), ("accuracy", "metric"))
        ),
        *(
            rule(
                f"!has(self.{key}) || has(self.metric) || !has(self.{of})",
                f"has no meaning for {of} - a metric by name; or {of} alone",
                f".{key}",
            )
            for key in ("value", "goal")
            for of in ("loss", "accuracy")
        ),
        rule("!has(self.metric) || has(self.value)", "required - the value to reach", ".value"),
        rule(
            f"!has(self.metric) || has(self.goal) || {_SHOWS_ITS_GOAL}",
            "required for a metric whose name does not show it - minimize or maximize",
            ".goal",
        ),
    ],
    ("clip",): [rule("has(self.norm) || has(self.value)", "clips nothing - a norm, or a value")],
    ("init",): [
        rule("has(self.job) || has(self.checkpoint)", "neither job nor checkpoint - one of job and checkpoint"),
        rule("!has(self.job) || !has(self.checkpoint)", "both job and checkpoint - one of job and checkpoint"),
    ],
    ("epoch",): [
        rule(
            "has(self.samples) || has(self.fraction) || has(self.time)",
            "no measure - one of samples, fraction and time",
        ),
        *(
            rule(
                f"!has(self.{first}) || !has(self.{second})",
                f"a second measure after {first} - one of samples, fraction and time",
                f".{second}",
            )
            for first, second in (("samples", "fraction"), ("samples", "time"), ("fraction", "time"))
        ),
    ],
    ("budget",): [
        # The API server compares a whole number with a minimum whose fraction it drops: 0 would pass.
        rule("!has(self.amount) || self.amount > 0.0", "too small - from 0.000001", ".amount"),
        rule("!has(self.unlimited) || !has(self.amount)", f"both unlimited and amount - {_EITHER}"),
        rule(
            "!has(self.unlimited) || has(self.amount) || !has(self.currency)",
            f"both unlimited and currency - {_EITHER}",
        ),
        rule(
            "!has(self.unlimited) || has(self.amount) || has(self.currency) || !has(self.chanceOfRunningOut)",
            f"has no meaning for an unlimited budget - {_EITHER}",
            ".chanceOfRunningOut",
        ),
        rule(
            "has(self.chanceOfRunningOut) == has(oldSelf.chanceOfRunningOut) "
            "&& (!has(self.chanceOfRunningOut) || self.chanceOfRunningOut == oldSelf.chanceOfRunningOut)",
            "cannot change - the one of before; or another job",
            ".chanceOfRunningOut",
        ),
        rule(
            "!has(self.mustSuffice) || !self.mustSuffice || has(self.amount)",
            "there is no amount - an amount, or without it",
            ".mustSuffice",
        ),
        rule(
            "!has(self.unlimited) || has(self.amount) || has(self.currency) || !has(self.account)",
            f"both unlimited and account - {_EITHER}",
        ),
        rule(
            "has(self.account) == has(oldSelf.account) && (!has(self.account) || self.account == oldSelf.account)",
            "cannot change - the one of before; or another job",
            ".account",
        ),
        rule(
            "!has(self.account) || has(self.amount) == has(oldSelf.amount)",
            "cannot be added, or taken away - as it was before; or another job",
            ".amount",
        ),
        rule(
            "has(self.unlimited) || has(self.amount) || has(self.currency) || has(self.account)",
            f"no amount - {_EITHER}",
        ),
        rule(
            "has(self.amount) || !has(self.currency) || has(self.unlimited)",
            f"required - {_EITHER}",
            ".amount",
        ),
        rule(
            "has(self.currency) || !has(self.amount) || has(self.unlimited)",
            f"required - {_EITHER}",
            ".currency",
        ),
        rule(
            "has(self.unlimited) == has(oldSelf.unlimited)",
            "cannot become unlimited, or limited - a larger amount; or another job",
        ),
        rule(
            "!has(self.amount) || !has(oldSelf.amount) || self.amount >= oldSelf.amount",
            "less than before, which was %s - that or more",
            ".amount",
            "oldSelf.amount",
        ),
        rule(
            "!has(self.currency) || !has(oldSelf.currency) || self.currency == oldSelf.currency",
            "another currency than before, which was %s - that",
            ".currency",
            "oldSelf.currency",
        ),
    ],
    ("servers",): [_NOT_EMPTY],
    ("policy",): [
        rule("self.name != 'static' || has(self.workers)", _STATIC, ".workers"),
        _only_static("workers"),
        _only_static("servers"),
    ],
    ("miniEpoch",): [
        rule(
            "self.minSeconds < self.maxSeconds",
            "not below maxSeconds, which is %s - less",
            ".minSeconds",
            "self.maxSeconds",
        )
    ],
    **{
        ("resources", role): [
            rule(
                "!has(self.gpuResource) || self.gpu > 0",
                "no GPU is asked for - together with gpu: 1 or more",
                ".gpuResource",
            )
        ]
        for role in ("scheduler", "server", "worker")
    },
}

_YEAR = 365 * 86400
#: Durations that are not 0.
_ABOVE_0 = (("timeLimit",), ("startTimeout",), ("epoch", "time"), ("spot", "deadline"))


def _seconds() -> str:
    parts = "self.findAll('[0-9.]+(ms|s|m|h|d)')"
    number = "double(p.find('[0-9.]+'))"
    # CEL's own durations know no days.
    factor = "p.endsWith('ms') ? 0.001 : p.endsWith('s') ? 1.0 : p.endsWith('m') ? 60.0"
    factor += " : p.endsWith('h') ? 3600.0 : 86400.0"
    return f"{parts}.map(p, {number} * ({factor})).sum()"


def for_field(path: tuple[str, ...], node: Schema) -> list[Rule]:
    """The rules of a field of `spec`, whose schema is `node`."""
    found = list(_RULES.get(path, ()))
    if node.get("pattern") == URI_PATTERN:
        found += [
            rule(
                f"!self.contains('://') || self.matches('^({'|'.join(SCHEMES)})://')",
                "no such kind of URI: %s:// - a path, or file://, s3:// or gs:// and a path",
                values="self.split('://')[0]",
            ),
            rule(
                f"!self.matches('^({'|'.join(SCHEMES)}):///*$')",
                "a URI without a path - %s:// and a path",
                values="self.split('://')[0]",
            ),
        ]
    if node.get("format") == "cpu":
        found.append(
            rule(
                "type(self) == int ? self > 0 && self <= 1024 : "
                "quantity(self).isGreaterThan(quantity('0')) && !quantity(self).isGreaterThan(quantity('1024'))",
                "CPU out of bounds - more than 0 and at most 1024 cores",
            )
        )
    if node.get("format") == "memory":
        found.append(
            rule(
                f"type(self) == int ? self >= {16 << 20} && self <= {64 << 40} : "
                "!quantity(self).isLessThan(quantity('16Mi')) && !quantity(self).isGreaterThan(quantity('64Ti'))",
                "memory out of bounds - 16Mi to 64Ti",
            )
        )
    if node.get("format") == "duration":
        above = "> 0" if path in _ABOVE_0 else ">= 0"
        at_least = "above 0" if path in _ABOVE_0 else "0 or more"
        found.append(
            rule(
                f"type(self) == int ? self {above} && self <= {_YEAR} : "
                f"{_seconds()} {above}.0 && {_seconds()} <= {_YEAR}.0",
                f"out of bounds - {at_least}, at most 365d",
            )
        )
    return found


def visible(node: Schema) -> bool:
    """Whether rules can see into a field of this structural schema."""
    return "type" in node or "x-kubernetes-int-or-string" in node


def unchanged(fields: dict[str, Schema], required: list[str]) -> tuple[list[Rule], Rule]:
    """Rules of `spec` on what may not change, and the rule of each field that may not."""
    words = f"cannot change - only {', '.join(MUTABLE[:-1])} and {MUTABLE[-1]} may; delete the job and create it again"
    optional = [
        key for key, node in fields.items() if key not in MUTABLE and key not in required and "default" not in node
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

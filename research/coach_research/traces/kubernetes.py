"""What `kubectl get -o yaml` (or json) prints: pods and nodes, or Kueue's workloads and queues.

kubectl get nodes,pods -A -o yaml > cluster.yaml                    --trace kubernetes:cluster.yaml
kubectl get workloads,clusterqueues -A -o yaml > queue.yaml         --trace kueue:queue.yaml
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import yaml

from coach.core.cluster import Allocation, Node, Resources
from coach.core.spec.quantities import of_object
from coach_research.traces.draft import MAX_PODS, Draft, shown, vector
from coach_research.traces.text import whole
from coach_research.workload import NOTHING, Work

#: Of a resource for which no queue has a quota.
PLENTY = 1e6

GPU = "/gpu"

#: Of priorities: that of Kubernetes' own pods.
MAX_WHOLE = 2_000_001_000


def read_kubernetes(draft: Draft) -> None:
    """Read the file into `draft`: each pod that has ended is a task, from its creation; nodes are its cluster."""
    for line, item in _items(draft):
        if item.get("kind") == "Node":
            found = _dict(item, "status", "allocatable") or _dict(item, "status", "capacity")
            draft.nodes.append(Node(_name(item), Resources(*_amounts(draft, line, found).tolist())))
        elif item.get("kind") == "Pod":
            began, ended = _pod_ran(draft, line, item)
            made = _time(draft, line, _get(item, "metadata", "creationTimestamp"))
            worker = _requests(draft, line, _dict(item, "spec"))
            kind = str(_get(item, "metadata", "namespace") or "")
            work = Work(made or 0.0, 0.0, worker, name=_name(item), kind=kind)
            work.priority = _whole(draft, line, _get(item, "spec", "priority"))
            _keep(draft, line, work, made, began, ended)


def read_kueue(draft: Draft) -> None:
    """Read the file into `draft`: each workload that has finished, from its creation; it ran since it was admitted.

    Its largest pod set are the workers, the next one the servers, all further pods one more. The cluster is a node for
    each ClusterQueue, or for all of a cohort, with its nominal quota; a workload is of the queue that admitted it.
    """
    quotas, cohorts = dict[str, dict[str, float]](), dict[str, str]()
    for line, item in _items(draft):
        if item.get("kind") == "ClusterQueue":
            queue = str(_get(item, "metadata", "name") or "")
            cohorts[queue] = str(_get(item, "spec", "cohort") or _get(item, "spec", "cohortName") or queue)
            quota = quotas.setdefault(cohorts[queue], {})
            for group in _list(item, "spec", "resourceGroups"):
                for flavour in _list(group, "flavors"):
                    for resource in _list(flavour, "resources"):
                        name, amount = str(resource.get("name")), str(resource.get("nominalQuota"))
                        quota[name] = quota.get(name, 0.0) + _amount(draft, line, name, amount)
        elif item.get("kind") == "Workload":
            _read_workload(draft, line, item)
    for name, quota in quotas.items():
        gpus = sum(amount for resource, amount in quota.items() if resource.endswith(GPU))
        has = Resources(quota.get("cpu", PLENTY), quota.get("memory", PLENTY), gpus)
        draft.nodes.append(Node(f"{name}/quota" if len(quotas) > 1 else "quota", has))
    if quotas:
        many = "each queue, or cohort, with its own quota" if len(quotas) > 1 else "one queue with the quota of all"
        draft.assume(f"{many}, without flavours, borrowing limits and nodes")
    for work in draft.works:
        work.kind = cohorts.get(work.kind, work.kind)


def _read_workload(draft: Draft, line: int, item: dict[str, Any]) -> None:
    conditions = {str(each.get("type")): each for each in _list(item, "status", "conditions")}

    def since(kind: str) -> float | None:
        found = conditions.get(kind) or {}
        return _time(draft, line, found.get("lastTransitionTime")) if found.get("status") == "True" else None

    sets = sorted(
        (
            (
                _whole(draft, line, each.get("count"), 1),
                _requests(draft, line, _dict(each, "template", "spec")),
            )
            for each in _list(item, "spec", "podSets")
        ),
        key=lambda each: -each[0],
    )
    made = _time(draft, line, _get(item, "metadata", "creationTimestamp"))
    sets = [each for each in sets if each[0] != 0]
    if not sets:
        draft.leave_out(_name(item), line, ["it has no pod set with a pod"])
        return
    if not 1 <= sets[0][0] <= MAX_PODS:
        raise draft.mistake(line, f"a pod set of {sets[0][0]} pods; use 1 to {MAX_PODS}")
    (workers, worker), *others = sets
    servers, server = others[0] if others else (0, NOTHING)
    rest = sum((count * each for count, each in others[1:]), np.zeros(3)) if len(others) > 1 else NOTHING
    counts = Allocation(workers, servers)
    work = Work(
        made or 0.0, 0.0, worker, server, rest, _name(item),
        str(_get(item, "status", "admission", "clusterQueue") or _get(item, "spec", "queueName") or ""),
        _whole(draft, line, _get(item, "spec", "priority")), counts, counts,
    )  # fmt: skip
    _keep(draft, line, work, made, since("Admitted"), since("Finished"))


def _keep(  # noqa: PLR0917
    draft: Draft, line: int, work: Work, made: float | None, began: float | None, ended: float | None
) -> None:
    """The job, or why it is left out."""
    reasons = []
    if work.name in draft.lines:
        reasons.append("a job before it has its name")
    if made is None:
        reasons.append("its time of creation is not known")
    if began is None:
        reasons.append("it has not started" if ended is None else "when it started is not known")
    elif ended is None:
        reasons.append("it has not ended")
    elif ended <= began:
        reasons.append("it ended within the second in which it started")
    if made is not None and began is not None and began < made:
        reasons.append("it started before its creation")
    if reasons or began is None or ended is None:
        draft.leave_out(work.name, line, reasons)
        return
    draft.waits.append(began - (made or began))
    work.work = (ended - began) * work.minimum.workers
    draft.keep(work, line, [] if work.worker.any() else ["it requests nothing, as its containers say"])


def _pod_ran(draft: Draft, line: int, pod: dict[str, Any]) -> tuple[float | None, float | None]:
    """When the first container of a pod started, and when the last one ended; None: has not, or is not known."""
    states = [_dict(each, "state", "terminated") for each in _list(pod, "status", "containerStatuses")]
    began = [_time(draft, line, state.get("startedAt")) for state in states]
    ended = [_time(draft, line, state.get("finishedAt")) for state in states]
    started = [at for at in began if at is not None] or [
        at for at in [_time(draft, line, _get(pod, "status", "startTime"))] if at is not None
    ]
    over = [at for at in ended if at is not None]
    return min(started, default=None), max(over) if over and len(over) == len(states) else None


def _requests(draft: Draft, line: int, spec: dict[str, Any]) -> Any:
    """What a pod requests: the sum of its containers, and its largest init container; else the limits."""

    def of(container: dict[str, Any]) -> Any:
        limits, requests = (_dict(container, "resources", of) for of in ("limits", "requests"))
        return _amounts(draft, line, {**limits, **requests})

    needed = sum((of(each) for each in _list(spec, "containers")), np.zeros(3))
    for each in _list(spec, "initContainers"):
        needed = np.maximum(needed, of(each))
    return needed


def _amounts(draft: Draft, line: int, found: dict[str, Any]) -> Any:
    gpus = sum(_amount(draft, line, name, str(text)) for name, text in found.items() if name.endswith(GPU))
    return vector(*(_amount(draft, line, name, str(found.get(name, "0"))) for name in ("cpu", "memory")), gpus)


def _amount(draft: Draft, line: int, name: str, text: str) -> float:
    """A quantity: GiB of memory and storage, else a number."""
    is_size = name in {"memory", "ephemeral-storage"}
    try:
        return of_object(text) / (2**30 if is_size else 1)
    except ValueError as error:
        right = "512Mi or 16Gi" if is_size else "500m or 4"
        raise draft.mistake(line, f'{shown(name)}: "{shown(text)}" is given; use a quantity such as {right}') from error


def _time(draft: Draft, line: int, text: Any) -> float | None:
    if not text or text == "null":
        return None
    try:
        at = datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
        return at if at > 0 else None  # 1970, or Go's year 1: how Kubernetes writes a time that never was
    except (ValueError, OverflowError) as error:
        raise draft.mistake(line, f'"{shown(str(text))}" is given; use a time such as 2026-11-01T10:00:00Z') from error


def _whole(draft: Draft, line: int, text: Any, otherwise: int = 0) -> int:
    if not text:
        return otherwise
    try:
        value = int(str(text))
    except ValueError:
        value = MAX_WHOLE + 1
    if abs(value) > MAX_WHOLE:
        raise draft.mistake(line, f'"{shown(str(text))}" is given; use a whole number')
    return value


def _name(item: dict[str, Any]) -> str:
    namespace, name = _get(item, "metadata", "namespace"), str(_get(item, "metadata", "name") or "")
    return f"{namespace}/{name}" if namespace else name


def _get(item: Any, *path: str) -> Any:
    """The value at a path; None where it is missing."""
    for key in path:
        item = item.get(key) if isinstance(item, dict) else None
    return item


def _dict(item: Any, *path: str) -> dict[str, Any]:
    found = _get(item, *path)
    return found if isinstance(found, dict) else {}


def _list(item: Any, *path: str) -> list[dict[str, Any]]:
    """The objects of the list at a path."""
    found = _get(item, *path)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _items(draft: Draft) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of the file, each with its line; all scalars are text. Raises UserError."""
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(whole(draft))
    made = yaml.constructor.BaseConstructor()
    try:
        while loader.check_node():
            root = loader.get_node()
            nodes: list[Any] = [root] if root is not None else []  # None: an empty document
            if isinstance(root, yaml.MappingNode):
                nodes = next(
                    (list(value.value) for key, value in root.value
                     if key.value == "items" and isinstance(value, yaml.SequenceNode)), nodes,
                )  # fmt: skip
            for node in nodes:
                if not isinstance(node, yaml.MappingNode):
                    mark = node.start_mark
                    raise draft.mistake(mark.line + 1, "an object is expected", mark.column + 1)
                yield node.start_mark.line + 1, made.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, None)
        raise draft.mistake(line, f"this is no YAML ({shown(str(error.problem or error.context))})", column) from error
    except RecursionError as error:
        raise draft.mistake(0, "the YAML is nested too deeply") from error
    finally:
        loader.dispose()

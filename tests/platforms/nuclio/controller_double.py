"""A stand-in for Nuclio's controller, which is no package: `test_controller.py` holds it to the real one's answers.

    python -m tests.platforms.nuclio.controller_double --kubeconfig-path FILE --namespace default --platform-config FILE

It knows what Coach's functions use (nuclio 1.14.1: pkg/platform/kube/controller, functionres and monitoring): one
ConfigMap, Service and Deployment for each function, states, augmented configs, the readiness timeout, the monitor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from coach.platforms.kubernetes_api.client import Api, ApiError, Object
from coach.platforms.kubernetes_api.watch import Collection

WAITING = "waitingForResourceConfiguration"
#: Seconds after a deployment during which other changes of a function are not looked at.
RECENT_SECONDS = 60.0
ANNOTATIONS = {"kubectl.kubernetes.io/default-container": "nuclio", "nuclio.io/image-hash": ""}


class Controller:
    """Works on functions one at a time, `workers` of them at once."""

    def __init__(self, api: Api, config: Mapping[str, Any], workers: int, monitor: float) -> None:
        self._api = api
        self._config = config
        self._workers = workers
        self._monitor_seconds = monitor
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._deployed: dict[str, float] = {}
        self._provisioning: dict[str, float] = {}
        self._path = f"/apis/nuclio.io/v1beta1/namespaces/{api.namespace}"
        self._core = f"/api/v1/namespaces/{api.namespace}"
        self._apps = f"/apis/apps/v1/namespaces/{api.namespace}"

    async def run(self) -> None:
        """Until it is cancelled."""
        self._functions = Collection(self._api, f"{self._path}/nucliofunctions")
        self._functions.listeners.append(lambda name, _found: self._enqueue(name))
        await self._functions.open()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._monitor())
            for _ in range(self._workers):
                tasks.create_task(self._work())

    def _enqueue(self, name: str) -> None:
        if name in self._busy:
            self._again.add(name)
        elif name not in self._queued:
            self._queued.add(name)
            self._queue.put_nowait(name)

    async def _work(self) -> None:
        while True:
            name = await self._queue.get()
            self._queued.discard(name)
            self._busy.add(name)
            try:
                function = self._functions.objects.get(name)
                await (self._delete(name) if function is None else self._change(copy.deepcopy(function)))
            except ApiError:
                self._again.add(name)
                await asyncio.sleep(0.05)
            finally:
                self._busy.discard(name)
                if name in self._again:
                    self._again.discard(name)
                    self._enqueue(name)

    async def _change(self, function: Object) -> None:
        name, state = function["metadata"]["name"], function.get("status", {}).get("state")
        if state not in (WAITING, "ready"):
            return
        recently = time.monotonic() - self._deployed.get(name, -RECENT_SECONDS) < RECENT_SECONDS
        if state == "ready" and recently:
            return
        project = (function["metadata"].get("labels") or {}).get("nuclio.io/project-name")
        wrong = "Failed to determine a project name for a function" if not project else ""
        if project and not await self._there(f"{self._path}/nuclioprojects/{project}"):
            wrong = f'nuclioprojects.nuclio.io "{project}" not found\n    .../nucliofunction.go:532'
        if wrong:
            await self._set(function, "error", f"Error - {wrong}")
            return
        await self._make(function)
        everywhere = _seconds(str(self._config.get("functionReadinessTimeout", "120s")))
        seconds = function["spec"].get("readinessTimeoutSeconds", everywhere)
        if seconds and not await self._available(name, seconds):
            await self._set(function, "unhealthy", "context deadline exceeded")
            return
        if state == WAITING:
            self._deployed[name] = time.monotonic()
            await self._set(function, "ready", None)

    async def _set(self, function: Object, state: str, message: str | None) -> None:
        metadata = {"resourceVersion": function["metadata"]["resourceVersion"]}
        change = {"metadata": metadata, "status": {"state": state, "message": message}}
        await self._api.merge(f"{self._path}/nucliofunctions/{function['metadata']['name']}", change)

    async def _available(self, name: str, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not _is_available(await self._api.get(f"{self._apps}/deployments/nuclio-{name}")):
                    await asyncio.sleep(0.25)
                return True
        return False

    async def _make(self, function: Object) -> None:
        name, spec = function["metadata"]["name"], function["spec"]
        labels = {
            **function["metadata"]["labels"],
            "nuclio.io/class": "function",
            "nuclio.io/app": "functionres",
            "nuclio.io/function-name": name,
            "nuclio.io/function-version": "latest",
        }
        metadata = {"name": f"nuclio-{name}", "labels": labels}
        file = {"metadata": {"name": name, "namespace": self._api.namespace, "labels": labels}, "spec": spec}
        await self._put(
            f"{self._core}/configmaps",
            {"metadata": metadata, "data": {"processor.yaml": yaml.safe_dump(file)}},
        )
        service = {"selector": labels, "ports": [{"name": "http", "port": 8080}]}
        await self._put(f"{self._core}/services", {"metadata": metadata, "spec": service})
        path = f"{self._apps}/deployments"
        found = await self._there(f"{path}/{metadata['name']}")
        if found is None:
            await self._api.create(path, {"metadata": metadata, "spec": self._new(function, labels)})
        else:
            # With the version that was read: what another client has changed since is a conflict, and read again.
            changed = {**found, "spec": self._changed(function, found)}
            await self._api._request("PUT", f"{path}/{metadata['name']}", {}, changed)

    def _new(self, function: Object, labels: Object) -> Object:
        made = {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "nuclio"}]}},
        }
        return self._changed(function, {"spec": made})

    def _changed(self, function: Object, deployment: Object) -> Object:
        spec, made = function["spec"], copy.deepcopy(deployment["spec"])
        pod = made["template"]["spec"]
        made["replicas"] = spec.get("replicas", spec.get("minReplicas", 1))
        made["template"]["metadata"]["annotations"] = ANNOTATIONS | {"nuclio.io/image-hash": spec.get("imageHash", "")}
        pod["containers"][0] |= self._container(function)
        volumes = [*(spec.get("volumes") or []), *self._own_volumes(function["metadata"]["name"])]
        pod["containers"][0]["volumeMounts"] = sorted(
            (one["volumeMount"] for one in volumes), key=lambda mount: str(mount["name"])
        )
        pod["volumes"] = [
            volume for _, volume in sorted({one["volume"]["name"]: one["volume"] for one in volumes}.items())
        ]
        for field in ("securityContext", "affinity", "tolerations", "nodeName", "priorityClassName"):
            pod.pop(field, None)
            if spec.get(field):
                pod[field] = spec[field]
        if spec.get("serviceAccount"):
            pod["serviceAccountName"] = spec["serviceAccount"]
        if spec.get("imagePullSecrets"):
            pod["imagePullSecrets"] = [{"name": spec["imagePullSecrets"]}]
        made["strategy"] = spec.get("deploymentStrategy") or {"type": "RollingUpdate"}
        for augmented in self._config.get("functionAugmentedConfigs") or ():
            wanted = augmented["labelSelector"]["matchLabels"].items()
            if wanted <= made["selector"]["matchLabels"].items():
                _fill(made, augmented["kubernetes"]["deployment"]["spec"])
        return made

    def _container(self, function: Object) -> Object:
        name, spec = function["metadata"]["name"], function["spec"]
        instance = {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}
        return {
            "image": spec["image"],
            "imagePullPolicy": spec.get("imagePullPolicy") or "Always",
            "resources": spec.get("resources") or {},
            "env": [
                *(spec.get("env") or []),
                {"name": "NUCLIO_FUNCTION_NAME", "value": name},
                {"name": "NUCLIO_FUNCTION_VERSION", "value": "latest"},
                {"name": "NUCLIO_FUNCTION_INSTANCE", "valueFrom": instance},
            ],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "readinessProbe": {
                "httpGet": {"port": 8080, "path": "/__internal/health"},
                "initialDelaySeconds": 5,
                "timeoutSeconds": 1,
                "periodSeconds": 1,
                "failureThreshold": 10,
            },
            "livenessProbe": {
                "httpGet": {"port": 8082, "path": "/live"},
                "initialDelaySeconds": 10,
                "timeoutSeconds": 3,
                "periodSeconds": 5,
            },
        }

    def _own_volumes(self, name: str) -> list[Object]:
        def one(what: str, source: Object) -> Object:
            volume = f"{what}-config-volume"
            return {
                "volume": {"name": volume, "configMap": source},
                "volumeMount": {"name": volume, "mountPath": f"/etc/nuclio/config/{what}"},
            }

        return [
            one("processor", {"name": f"nuclio-{name}"}),
            one("platform", {"name": "nuclio-platform-config", "optional": True}),
        ]

    async def _put(self, path: str, body: Object) -> None:
        """Create, or replace the fields that are ours."""
        where = f"{path}/{body['metadata']['name']}"
        found = await self._there(where)
        if found is None:
            await self._api.create(path, body)
        else:
            await self._api.merge(where, {key: body[key] for key in ("data", "spec") if key in body})

    async def _delete(self, name: str) -> None:
        for path in (f"{self._core}/services", f"{self._apps}/deployments", f"{self._core}/configmaps"):
            await self._api.delete(f"{path}/nuclio-{name}", propagationPolicy="Foreground")

    async def _there(self, path: str) -> Object | None:
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _monitor(self) -> None:
        while True:
            await asyncio.sleep(self._monitor_seconds)
            for name, function in list(self._functions.objects.items()):
                state = function.get("status", {}).get("state")
                if state not in ("ready", "unhealthy") or not function["spec"].get("replicas", 1):
                    continue
                found = await self._there(f"{self._apps}/deployments/nuclio-{name}")
                if found is None:
                    continue
                now = "ready" if _is_available(found) else "unhealthy"
                if now != state:
                    with contextlib.suppress(ApiError):
                        await self._set(function, now, "Function is not healthy" if now != "ready" else None)


def _is_available(deployment: Object) -> bool:
    conditions = deployment.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)


def _fill(target: Object, source: Mapping[str, Any]) -> None:
    """Set only what is empty, as mergo.Merge does."""
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _fill(target[key], value)
        elif not target.get(key):
            target[key] = value


def _seconds(duration: str) -> float:
    unit = {"s": 1.0, "m": 60.0}[duration[-1]]
    return float(duration[:-1]) * unit


async def _main(args: argparse.Namespace) -> None:
    config = yaml.safe_load(args.platform_config.read_text()) or {}
    os.environ["KUBECONFIG"] = str(args.kubeconfig_path)
    async with await Api.connect(namespace=args.namespace) as api:
        workers, monitor = args.function_operator_num_workers, _seconds(args.function_monitor_interval)
        await Controller(api, config, workers, monitor).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig-path", type=Path, required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--platform-config", type=Path, required=True)
    parser.add_argument("--function-operator-num-workers", type=int, default=4)
    parser.add_argument("--function-monitor-interval", default="180s")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(parser.parse_args()))

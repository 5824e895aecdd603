"""A real etcd and kube-apiserver on loopback addresses, without controllers and kubelets, and a client of both.

The program is the one of the scheduler's tests: `make control-plane`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import yaml

from tests.docs.pages import ROOT
from tests.required import missing

#: Kubernetes' programs, of the version that the scheduler has, or of the one named, such as 1.37.
PROGRAM = ROOT / "-".join(filter(None, ["scheduler-plugins/bin/controlplane", os.environ.get("COACH_KUBERNETES")]))
HELM = ROOT / ".cache/bin/helm"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Client:
    """Somebody who talks to the API server."""

    http: httpx.Client
    kubeconfig: Path

    def apply(self, document: dict[str, Any], *, dry_run: bool = False) -> httpx.Response:
        """What `kubectl apply --server-side` sends; it lets nothing unknown pass."""
        query = {"fieldManager": "test", "fieldValidation": "Strict", "force": "true"}
        return self.http.patch(
            path_of(document),
            params=query | ({"dryRun": "All"} if dry_run else {}),
            headers={"content-type": APPLY},
            content=yaml.safe_dump(document),
        )

    def get(self, path: str, **query: str) -> Any:
        answer = self.http.get(path, params=query)
        answer.raise_for_status()
        return answer.json()

    def exists(self, path: str) -> bool:
        return self.http.get(path).status_code == 200

    def create(self, path: str, document: dict[str, Any], **query: str) -> Any:
        answer = self.http.post(path, json=document, params=query)
        answer.raise_for_status()
        return answer.json()


def path_of(document: dict[str, Any]) -> str:
    """Where an object is; the test applies kinds whose plural is their name and an s."""
    version, metadata = document["apiVersion"], document["metadata"]
    start = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{start}{where}/{document['kind'].lower()}s/{metadata['name']}"


def until(what: str, condition: Any, seconds: float = 60.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


@dataclass(frozen=True)
class ApiServer:
    """A running API server."""

    folder: Path
    url: str
    admin: Client
    process: subprocess.Popen[bytes]

    def client(self, token: str, name: str) -> Client:
        """One who shows this token."""
        return _client(self.folder, self.url, token, name)

    def service_account(self, namespace: str, name: str) -> Client:
        """A service account with the token that its pods have."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return self.client(self.admin.create(path, request)["status"]["token"], name)


def _client(folder: Path, url: str, token: str, name: str) -> Client:
    certificate = folder / "certificates/apiserver.crt"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    headers = {"authorization": f"Bearer {token}"}
    # Certificate checks are the kubeconfig's; here the address is one that we have just started.
    return Client(httpx.Client(base_url=url, headers=headers, verify=False, timeout=60), path)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _ends_with_us() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def api_server(
    folder: Path, controllers: str = "", options: Mapping[str, str] = MappingProxyType({})
) -> Iterator[ApiServer]:
    """Start both, and end both; and of kube-controller-manager the controllers with these names.

    `options`: further ones of kube-apiserver; `feature-gates` are the controllers' too.
    """
    if not PROGRAM.exists():
        missing(f"no {PROGRAM.relative_to(ROOT)}: run make control-plane, which needs Go")
    if not shutil.which("openssl"):
        missing("no openssl on this machine: it makes the key of service accounts")
    store, peer, port = _free_ports(3)
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (folder / "tokens").write_text('admin-token,admin,1,"system:masters"\n')
    client, peers = f"http://127.0.0.1:{store}", f"http://127.0.0.1:{peer}"
    # No controller manager: it would make service accounts' default, untaint nodes, and take finalizers away.
    without = "ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection"
    programs = {
        "etcd": {
            "data-dir": folder / "etcd-data",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "unsafe-no-fsync": "true",
        },
        "kube-apiserver": {
            "etcd-servers": client,
            "secure-port": port,
            "bind-address": "127.0.0.1",
            "cert-dir": folder / "certificates",
            "token-auth-file": folder / "tokens",
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/24",
            "disable-admission-plugins": without,
            **options,
        },
    }
    with contextlib.ExitStack() as stack:

        def start(name: str, given: dict[str, Any]) -> subprocess.Popen[bytes]:
            (folder / name).symlink_to(PROGRAM)
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [folder / name, *(f"--{option}={value}" for option, value in given.items())],
                stdout=log,
                stderr=log,
                env={**os.environ, "GOGC": "400"},  # memory for processor time
                preexec_fn=_ends_with_us,  # noqa: PLW1509 - started before any thread
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        for name, given in programs.items():
            process = start(name, given)  # the last is the API server
        url = f"https://127.0.0.1:{port}"
        until("the API server makes its certificate", (folder / "certificates/apiserver.crt").exists)
        admin = _client(folder, url, "admin-token", "admin")
        stack.callback(admin.http.close)

        def ready() -> bool:
            assert process.poll() is None, (folder / "kube-apiserver.log").read_text()[-4000:]
            with contextlib.suppress(httpx.TransportError):
                # The last that it makes by itself, after it says that it is ready.
                own = "/api/v1/namespaces/default/endpoints/kubernetes"
                return all(admin.http.get(path).status_code == 200 for path in ("/readyz", own))
            return False

        until("the API server gets ready", ready, 300)
        if controllers:
            given = {"kubeconfig": admin.kubeconfig, "authorization-kubeconfig": admin.kubeconfig}
            given |= {"controllers": controllers, "leader-elect": "false", "secure-port": "0"}
            start("kube-controller-manager", given | {"feature-gates": options.get("feature-gates", "")})
        yield ApiServer(folder, url, admin, process)


def served(client: Client, crd: dict[str, Any]) -> None:
    """Install a CRD, and wait until the API server serves it. Raises AssertionError with its words."""
    answer = client.apply(crd)
    assert answer.status_code in (200, 201), json.dumps(answer.json(), indent=1)
    version = crd["spec"]["versions"][0]["name"]
    path = f"/apis/{crd['spec']['group']}/{version}/{crd['spec']['names']['plural']}"
    until("the API server serves it", lambda: client.exists(path))

"""A real cluster on this machine: a control plane and three nodes, each on a machine of its own (see machine.py).

    with Cluster() as cluster:
        cluster.load_image(Path(".cache/images/coach-functions.tar"))
        print(cluster.kubectl("get", "nodes"))

Needs root, Debian's iproute2, util-linux and openssl, and what `make test-kubernetes` builds. Its files are in
.cache/kubernetes: logs/, and nodes/ with the images that were imported. There is no kube-proxy: the `kubernetes`
service has its address, pods and nodes have theirs, also from this machine. DNS knows pods of headless services.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts import images
from tests.kubernetes.machines.machine import Daemon, Machine, kill
from tests.kubernetes.machines.node import SERVICE, Node, hierarchies
from tests.packaging.api_server import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / ".cache/kubernetes"
NAMES = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
    *("device-plugin", "dra-driver"),
)
DNS = ROOT / "tests/kubernetes/machines/dns.py"


class Unready(Exception):
    """The cluster cannot run here; the message is one line with the next command."""


def check() -> None:
    """Raise Unready where this machine cannot run the cluster, whatever is built."""
    if os.environ.get("KUBECONFIG"):
        return
    if os.geteuid() != 0:
        raise Unready("the cluster's nodes need root: run as root, or name a cluster by KUBECONFIG")
    programs = {"ip": "iproute2", "unshare": "util-linux", "openssl": "openssl", "go": "golang"}
    absent = [program for program in programs if not shutil.which(program)]
    if not shutil.which("docker") and not shutil.which("dpkg-deb"):
        absent.append("dpkg-deb")
    if absent:
        packages = " ".join(programs.get(program, "dpkg") for program in absent)
        raise Unready(f"no {' '.join(absent)} here: apt-get install {packages}, or name a cluster by KUBECONFIG")
    if any(ROOT.is_relative_to(place) for place in ("/run", "/var/lib", "/var/log")):
        raise Unready(f"the nodes hide {ROOT.parents[-2]} from their programs: use a checkout elsewhere")


class ExistingCluster:
    """The cluster that KUBECONFIG names. Its nodes must have Coach's images; it must have a storage class `coach`."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def kubectl(self, *arguments: object, input: str | None = None) -> str:
        """Run kubectl as administrator and return what it printed. Raises RuntimeError with its errors."""
        ended = subprocess.run(
            [FILES / "bin/kubectl", "--kubeconfig", str(self.kubeconfig), *map(str, arguments)],
            capture_output=True,
            text=True,
            input=input,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"kubectl {' '.join(map(str, arguments))}: {ended.stderr.strip()}")
        return ended.stdout

    def get(self, *arguments: object) -> dict[str, Any]:
        """What `kubectl get` finds."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", input="\n---\n".join(json.dumps(item) for item in objects))

    def load_image(self, archive: Path) -> None:
        """Nothing: the images of a user's cluster are the user's to load."""

    @property
    def node_names(self) -> list[str]:
        """The nodes that take pods."""
        return [node["metadata"]["name"] for node in self.get("nodes")["items"]]


class Cluster(ExistingCluster):
    """Three nodes n1, n2, n3 of our own."""

    def __init__(self) -> None:
        super().__init__(FILES / "run/admin.kubeconfig")
        self.nodes: dict[str, Node] = {}
        self.seconds: dict[str, float] = {}
        """What the start took, by step."""
        self.shared = FILES / "shared"
        """A folder that all nodes see; the persistent volume `coach` is on it."""
        self._daemons: dict[str, Daemon] = {}
        self._commands: dict[str, list[object]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The API server's, on this machine and on the nodes."""
        return f"https://10.{self._net}.0.1"

    @property
    def outside(self) -> str:
        """The address of this machine, as nodes and pods reach it."""
        return f"10.{self._net}.0.254"

    def load_image(self, archive: Path) -> None:
        """Import an image on all nodes that run and do not have it."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda node: node.load_image(archive), self._up()))

    def spawn(self, command: Sequence[object], log: str) -> Daemon:
        """Start a program next to the control plane."""
        return self._plane.spawn(command, FILES / "logs" / log)

    def stop_kubelet(self, node: str) -> None:
        """End a node's kubelet; its containers go on."""
        self.nodes[node].stop_kubelet()

    def start_kubelet(self, node: str) -> None:
        """Start a node's kubelet again; returns once it knows its pods: `kubectl exec` fails before that."""
        self.nodes[node].start_kubelet()
        self._wait(f"kubelet on {node}", lambda: self._knows_its_pods(node))

    def kill_node(self, node: str) -> None:
        """Lose a node with all its processes."""
        self.nodes[node].kill()

    def start_node(self, node: str) -> None:
        """Bring a lost node back, as after a reboot."""
        self._boot(self.nodes[node])
        self.nodes[node].start_containerd()
        self.nodes[node].start_kubelet()

    def restart(self, name: str, *options: str) -> None:
        """Kill a part of the control plane and start it again, with further options until the next time."""
        self._daemons[name].kill()
        self._spawn(name, *options)
        if name in ("etcd", "kube-apiserver"):
            self._wait("the API server", self._api_ready)

    def reset_volume(self) -> None:
        """Make the storage class and the persistent volume `coach` anew, its folder empty."""
        self.kubectl("delete", "pv", "coach", "--ignore-not-found", "--wait=false")
        if self.kubectl("get", "pv", "coach", "--ignore-not-found"):
            self.kubectl("patch", "pv", "coach", "-p", '{"metadata":{"finalizers":null}}')
        shutil.rmtree(self.shared, ignore_errors=True)
        self.shared.mkdir(parents=True)
        self.shared.chmod(0o777)
        class_: dict[str, Any] = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        class_ |= {"metadata": {"name": "coach", "annotations": default}}
        class_ |= {"provisioner": "kubernetes.io/no-provisioner"}
        spec = {
            "storageClassName": "coach",
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "hostPath": {"path": str(self.shared), "type": "Directory"},
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "coach"}, "spec": spec}
        self.apply(class_, volume)

    def _start(self) -> None:
        check()
        self._began = time.monotonic()
        self._lock()
        _link_programs()
        for name in ("run", "logs"):
            shutil.rmtree(FILES / name, ignore_errors=True)
            (FILES / name).mkdir(parents=True)
        programs = _debian_programs()
        self._path = f"{FILES}/bin:{programs}/usr/bin:{programs}/usr/sbin:{os.environ['PATH']}"
        self._start_plane()
        cgroup = f"coach-{self._net}"
        self._stack.callback(_remove_cgroups, cgroup)
        self._stack.callback(self._end)
        for name in {folder.name for tree in hierarchies() for folder in tree.glob("coach-*")}:
            if name == cgroup or not Path("/sys/class/net", name).exists():
                _remove_cgroups(name)  # of a run that was killed
        for number in (1, 2, 3):
            node = Node(number, self._net, FILES, programs, self._path, cgroup)
            self.nodes[node.name] = node
            self._boot(node)
        self._mark("machines")
        pause = _pause()
        with ThreadPoolExecutor() as threads:
            nodes = [threads.submit(self._start_node, node, pause) for node in self.nodes.values()]
            self._wait("the API server", self._api_ready)
            self._mark("API server")
            self._spawn("kube-controller-manager")
            self._spawn("kube-scheduler")
            self._spawn("dns")
            for node in nodes:
                node.result()
        self._mark("containerd")
        for node in self.nodes.values():
            node.start_kubelet()
        self._wait("three nodes", self._nodes_ready)
        self._mark("nodes Ready")
        self.reset_volume()

    def _start_node(self, node: Node, pause: Path) -> None:
        node.start_containerd()
        node.load_image(pause)

    def _boot(self, node: Node) -> None:
        node.boot(self._plane)
        for other in self._up():
            if other is not node:
                node.route_to(other)
                other.route_to(node)

    def _up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.machine is not None]

    def _end(self) -> None:
        kill([self._plane, *(node.machine for node in self.nodes.values() if node.machine is not None)])
        # It would go with the control plane's network, which the kernel removes some time after the processes.
        subprocess.run(["ip", "link", "delete", f"coach-{self._net}"], capture_output=True, check=False)

    def _lock(self) -> None:
        FILES.mkdir(parents=True, exist_ok=True)
        lock = self._stack.enter_context((FILES / "lock").open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unready("another test run uses this checkout's cluster: wait for its end") from None

    def _start_plane(self) -> None:
        """The control plane's machine, with a cable to this one: its free name chooses the network."""
        self._plane = Machine("control plane", "", self._path)
        self._stack.callback(self._plane.kill)
        for self._net in range(200, 216):
            cable = ["ip", "link", "add", f"coach-{self._net}", "type", "veth", "peer", "name", "outside"]
            added = subprocess.run([*cable, "netns", str(self._plane.pid)], capture_output=True, check=False)
            if not added.returncode:
                break
        else:
            raise Unready(f"no network for the cluster: {added.stderr.decode().strip()}")
        plane, here = f"10.{self._net}.0.1", f"coach-{self._net}"
        self._plane.run(
            "sh",
            "-ec",
            f"""
ip link set lo up; ip addr add {SERVICE}/32 dev lo
# An address of its own: else the bridge takes that of a port, and changes it when a node is lost.
ip link add nodes address 02:00:00:00:00:01 type bridge; ip addr add {plane}/24 dev nodes; ip link set nodes up
ip link set outside master nodes up
echo 1 > /proc/sys/net/ipv4/ip_forward
""",
        )
        for command in (
            f"ip addr add 10.{self._net}.0.254/24 dev {here}",
            f"ip link set {here} up",
            f"ip route add 10.{self._net}.0.0/16 via {plane}",
        ):
            subprocess.run(command.split(), check=True)
        self._write_secrets(plane)
        run, store = FILES / "run", "http://127.0.0.1:2379"
        peer = "http://127.0.0.1:2380"
        self._commands = {
            "etcd": [
                *("--data-dir", run / "etcd", "--unsafe-no-fsync"),
                *("--listen-client-urls", store, "--advertise-client-urls", store),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            ],
            "kube-apiserver": [
                *("--secure-port", "443", "--bind-address", "0.0.0.0", "--advertise-address", plane),
                *("--tls-cert-file", run / "tls.crt", "--tls-private-key-file", run / "tls.key"),
                *(
                    "--etcd-servers",
                    store,
                    "--token-auth-file",
                    run / "tokens",
                    "--authorization-mode",
                    "Node,RBAC",
                ),
                *("--enable-admission-plugins", "NodeRestriction", "--allow-privileged"),
                *("--service-account-issuer", "https://kubernetes.default.svc"),
                *(
                    "--service-account-key-file",
                    run / "sa.key",
                    "--service-account-signing-key-file",
                    run / "sa.key",
                ),
                *(
                    "--service-cluster-ip-range",
                    "10.96.0.0/24",
                    "--kubelet-preferred-address-types",
                    "InternalIP",
                ),
            ],
            "dns": [SERVICE, self.url, "admin"],
            "kube-scheduler": [
                *("--kubeconfig", self.kubeconfig, "--leader-elect=false", "--secure-port", "0"),
            ],
            "kube-controller-manager": [
                *("--kubeconfig", self.kubeconfig, "--leader-elect=false", "--root-ca-file", run / "tls.crt"),
                *("--service-account-private-key-file", run / "sa.key", "--node-monitor-grace-period", "20s"),
            ],
        }
        self._spawn("etcd")
        self._spawn("kube-apiserver")

    def _write_secrets(self, plane: str) -> None:
        run = FILES / "run"
        names = f"subjectAltName=IP:{plane},IP:{SERVICE},DNS:kubernetes.default.svc"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3"]
        certificate = ["-keyout", run / "tls.key", "-out", run / "tls.crt", "-subj", "/CN=coach-test"]
        account = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", run / "sa.key"]
        for command in (["openssl", "req", "-x509", *key, *certificate, "-addext", names], account):
            subprocess.run([str(part) for part in command], check=True, capture_output=True)
        tokens = {"admin": "admin,admin,1,system:masters"}
        tokens |= {f"n{i}": f"n{i},system:node:n{i},1{i},system:nodes" for i in (1, 2, 3)}
        (run / "tokens").write_text("\n".join(tokens.values()) + "\n")
        for user in tokens:
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "clusters": [
                    {
                        "name": "test",
                        "cluster": {"server": self.url, "certificate-authority": str(run / "tls.crt")},
                    }
                ],
                "users": [{"name": user, "user": {"token": user}}],
            }
            (run / f"{user}.kubeconfig").write_text(json.dumps(config))

    def _spawn(self, name: str, *options: str) -> None:
        log = FILES / "logs" / f"{name}.log"
        program = [sys.executable, DNS] if name == "dns" else [name]
        self._daemons[name] = self._plane.spawn([*program, *self._commands[name], *options], log)

    def _wait(self, what: str, ready: Callable[[], bool], timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(RuntimeError):
                if ready():
                    return
            for daemon in self._daemons.values():
                if not daemon.running:
                    raise RuntimeError(f"{daemon.log.name}: {daemon.last_words()}")
            for node in self._up():
                node.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {what} after {timeout:.0f} s; their logs are in {FILES / 'logs'}")
            time.sleep(0.1)

    def _api_ready(self) -> bool:
        return self.kubectl("get", "--raw", "/readyz") == "ok"

    def _nodes_ready(self) -> bool:
        conditions = self.kubectl(
            "get", "nodes", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        )
        self.kubectl("get", "serviceaccount", "default")  # without it no pod is admitted
        return conditions.split() == ["True"] * len(self.nodes)

    def _knows_its_pods(self, node: str) -> bool:
        known = json.loads(self.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods"))["items"] or ()
        bound = self.get("pods", "-A", "--field-selector", f"spec.nodeName={node}")["items"]
        return {pod["metadata"]["uid"] for pod in bound} <= {pod["metadata"]["uid"] for pod in known}

    def _mark(self, step: str) -> None:
        self.seconds[step] = time.monotonic() - self._began


def _debian_programs() -> Path:
    """containerd, runc and the network plugins, unpacked and not installed: nothing starts a service."""
    debs = images.download(["containerd", "runc", "containernetworking-plugins"])
    folder = FILES / "root"
    marker = folder / "packages"
    listing = " ".join(deb.name for deb in debs)
    if not (marker.exists() and marker.read_text() == listing):
        shutil.rmtree(folder, ignore_errors=True)
        for deb in debs:
            subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        marker.write_text(listing)
    return folder


def _pause() -> Path:
    """The image of the process that holds a pod's namespaces."""
    (deb,) = images.download(["busybox-static"])
    folder = FILES / "pause"
    target = images.OUT / "coach-pause.tar"

    def entries() -> list[tuple[str, images.Content]]:
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        (found,) = [path for path in folder.rglob("busybox") if path.is_file() and path.parent.name == "bin"]
        return [("bin/busybox", found)]

    layer = images.Layer("pause", [deb.name], entries).write()
    images.archive(
        target,
        "docker.io/library/coach-pause:1",
        [layer],
        {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]},
    )
    return target


def _remove_cgroups(name: str) -> None:
    for tree in (*hierarchies(), Path("/sys/fs/cgroup/unified")):
        for folder, _, _ in os.walk(tree / name, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def existing() -> ExistingCluster:
    """The cluster that KUBECONFIG names, with the kubectl that is built for ours."""
    _link_programs()
    return ExistingCluster(Path(os.environ["KUBECONFIG"]))


def _link_programs() -> None:
    if not PROGRAM.exists():
        raise Unready("the cluster's programs are not built: run make test-kubernetes")
    shutil.rmtree(FILES / "bin", ignore_errors=True)
    (FILES / "bin").mkdir(parents=True)
    for name in NAMES:
        (FILES / "bin" / name).symlink_to(PROGRAM)


def main() -> int:
    """`check` says in one line why the cluster cannot run here; without it, run one until Enter is pressed."""
    try:
        if sys.argv[1:] == ["check"]:
            check()
            return 0
        with Cluster() as cluster:
            for archive in sorted(images.OUT.glob("*.tar")):
                cluster.load_image(archive)
            steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in cluster.seconds.items())
            print(f"{steps}\nexport KUBECONFIG={cluster.kubeconfig} PATH={FILES}/bin:$PATH\nEnter ends it.")
            sys.stdin.readline()
    except Unready as error:
        print(f"test-kubernetes: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

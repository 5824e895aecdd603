"""One node of the cluster: containerd and kubelet on a machine of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from scripts import images
from tests.kubernetes.machines.machine import Daemon, Machine

SERVICE = "10.96.0.1"
"""Address of the `kubernetes` service in every cluster, and of its DNS."""
_CONTAINERD = """version = 2
root = "{folder}/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/coach-pause:1"
  restrict_oom_score_adj = true  # else runc fails where the score may not be lowered
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs}/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


class Node:
    """Node `number` is 10.`net`.0.10+number, and its pods are in 10.`net`.number.0/24."""

    def __init__(self, number: int, net: int, files: Path, programs: Path, path: str, cgroup: str) -> None:
        self.number, self.name = number, f"n{number}"
        self.address = f"10.{net}.0.{10 + number}"
        self.pods = f"10.{net}.{number}.0/24"
        self._net, self._programs, self._path, self._cgroup = net, programs, path, cgroup
        self.folder = files / "nodes" / self.name  # containerd keeps its images here from run to run
        self._logs = files / "logs"
        self._kubeconfig = files / "run" / f"{self.name}.kubeconfig"
        self.machine: Machine | None = None
        self._containerd: Daemon | None = None
        self._kubelet: Daemon | None = None

    def boot(self, plane: Machine) -> None:
        """Make the machine and join it to the control plane's bridge. Only from the main thread."""
        for name in ("var", "cni", "ipam"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("var/lib", "var/log", "cni", "containerd"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(folder=self.folder, programs=self._programs))
        (self.folder / "cni/bridge.conflist").write_text(json.dumps(self._cni()))
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet_settings()))
        self._make_cgroups()
        setup = f"""
hostname {self.name}
mount --make-rshared /
mount -t tmpfs tmpfs /run
mount --bind {self.folder}/var/lib /var/lib
mount --bind {self.folder}/var/log /var/log
mkdir -p /var/lib/kubelet /var/log/pods /var/log/containers
"""
        self.machine = Machine(self.name, setup, self._path)
        cable = f"to-{self.name}"
        ends = ["netns", self.machine.pid, "type", "veth", "peer", "name", cable, "netns", plane.pid]
        subprocess.run(["ip", "link", "add", "eth0", *map(str, ends)], check=True)
        plane.run("ip", "link", "set", cable, "master", "nodes", "up")
        self.machine.run(
            "sh",
            "-ec",
            f"""
ip link set lo up; ip addr add {self.address}/24 dev eth0; ip link set eth0 up
ip route add default via 10.{self._net}.0.1
echo 1 > /proc/sys/net/ipv4/ip_forward
""",
        )
        plane.run("ip", "route", "replace", self.pods, "via", self.address)

    def route_to(self, other: Node) -> None:
        """Reach the other node's pods without a way round over the control plane."""
        assert self.machine is not None
        self.machine.run("ip", "route", "replace", other.pods, "via", other.address)

    def start_containerd(self) -> None:
        """Start it, without the containers of an earlier run."""
        self._run_containerd()
        if old := self.ctr("containers", "ls", "-q").split():
            self.ctr("containers", "rm", *old)
            assert self._containerd is not None
            self._containerd.kill()
            self._run_containerd()

    def _run_containerd(self) -> None:
        assert self.machine is not None
        command = ["containerd", "-c", self.folder / "containerd.toml"]
        self._containerd = self.machine.spawn(command, self._logs / f"{self.name}-containerd.log")
        deadline = time.monotonic() + 60
        while True:
            try:
                self.ctr("version")
                return
            except RuntimeError:
                if time.monotonic() > deadline or not self._containerd.running:
                    raise RuntimeError(f"{self.name}: containerd: {self._containerd.last_words()}") from None
                time.sleep(0.1)

    def ctr(self, *arguments: object) -> str:
        """Run containerd's own client on the namespace of Kubernetes."""
        assert self.machine is not None
        return self.machine.run("ctr", "-n", "k8s.io", *arguments)

    def load_image(self, archive: Path) -> bool:
        """Import an image unless this very content is there; whether it was imported."""
        manifest = images.read_manifest(archive)
        (tag,) = manifest["RepoTags"]
        marker = self.folder / "images" / archive.stem
        have = marker.exists() and marker.read_text() == manifest["Config"]
        old = self._images().get(tag)
        if have and old:
            return False
        present = set(self.ctr("content", "ls", "-q").split())
        part = self.folder / f"{archive.stem}.part.tar"
        images.oci_archive(archive, part, tag, without=present)
        if old:  # else its layers, which the new image shares, may be collected while they are unpacked
            self.ctr("images", "tag", "--force", tag, f"before-{tag}")
        self.ctr("images", "import", part)
        part.unlink()
        # Any name of the image that had the tag, the kubelet's own too, would keep its layers for ever.
        for name in [name for name, digest in self._images().items() if digest == old and name != tag]:
            with contextlib.suppress(RuntimeError):  # containerd itself removed it meanwhile
                self.ctr("images", "rm", name)
        marker.parent.mkdir(exist_ok=True)
        marker.write_text(manifest["Config"])
        return True

    def _images(self) -> dict[str, str]:
        """Digest of each name."""
        return dict(line.split()[0:3:2] for line in self.ctr("images", "ls").splitlines()[1:])

    def start_kubelet(self) -> None:
        """Start the kubelet, which makes the node Ready. A second one would end at once: its port is taken."""
        assert self.machine is not None and not (self._kubelet and self._kubelet.running)
        command = ["kubelet", "--config", self.folder / "kubelet.yaml", "--kubeconfig", self._kubeconfig]
        command += ["--hostname-override", self.name, "--node-ip", self.address]
        self._kubelet = self.machine.spawn(command, self._logs / f"{self.name}-kubelet.log")

    def stop_kubelet(self) -> None:
        """End the kubelet; the node's containers go on."""
        assert self._kubelet is not None
        self._kubelet.kill()

    def check(self) -> None:
        """Raise RuntimeError when containerd or the kubelet has ended."""
        for daemon in (self._containerd, self._kubelet):
            if daemon is not None and not daemon.running:
                raise RuntimeError(f"{daemon.log.name}: {daemon.last_words()}")

    def kill(self) -> None:
        """Lose the node: containerd, kubelet and every container end at once."""
        if self.machine is not None:
            self.machine.kill()
            self.machine = None

    def _make_cgroups(self) -> None:
        """The folder of this node in every hierarchy (version 1), or in the only one (version 2)."""
        for tree in hierarchies():
            folder = tree / self._cgroup / self.name
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems") if tree.name == "cpuset" else ():
                for place in (folder.parent, folder):
                    (place / name).write_text((tree / name).read_text())

    def _cni(self) -> dict[str, object]:
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": self.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.folder / "ipam"),
        }
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}

    def _kubelet_settings(self) -> dict[str, object]:
        # Since 1.35: else, after one pod that pulls always, pods that pull never ask the registry too.
        old = os.environ.get("COACH_KUBERNETES") == "1.34"
        verification = {} if old else {"imagePullCredentialsVerificationPolicy": "NeverVerify"}
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}/{self.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "resolvConf": "",
            "clusterDNS": [SERVICE],
            "clusterDomain": "cluster.local",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            **verification,
        }


def hierarchies() -> list[Path]:
    """Where cgroups are made on this machine."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted(tree for tree in root.iterdir() if (tree / "cgroup.procs").exists() and tree.name != "unified")

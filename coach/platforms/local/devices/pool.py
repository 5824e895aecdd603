"""Which pod has which of this machine's GPUs, and which others have."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence

from coach.core.cluster import Node, Pod, PodId, Resources, Taken
from coach.core.errors import UserError
from coach.core.jobs.epoch import DeviceUse
from coach.core.jobs.reasons import Reason
from coach.platforms.base import PodError
from coach.platforms.local import devices
from coach.platforms.local.devices import Lease
from coach.platforms.local.devices.device import Device


class DevicePool:
    """The devices of `nodes`: each node has those after the ones of the node before it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Raises UserError where the nodes have more of them than this process may use."""
        every = devices.all_devices()
        left = devices.visible(every)
        there = len(left)
        #: Whether this machine has any, given to a job or not.
        self.any = bool(every)
        self._of: dict[str, list[Device]] = {}
        for node in nodes:
            count = int(node.capacity.gpu)
            if count > len(left):
                wanted = sum(int(node.capacity.gpu) for node in nodes)
                names = " and ".join(devices.limits()) or devices.vendor().LIMITS[0][0]
                raise UserError(
                    f"--nodes: {wanted} GPUs in all, but Coach finds {there} on this machine that it may use; "
                    f"give `gpu: 0` or less of them, or look at {names} and: coach doctor"
                )
            self._of[node.name], left = left[:count], left[count:]
        self._leases: dict[PodId, list[Lease]] = {}
        #: What each pod's devices did since it was last asked for.
        self._uses: dict[PodId, DeviceUse] = {}

    def of(self, pod: PodId) -> Sequence[Device]:
        """Those that it has."""
        return [lease.device for lease in self._leases.get(pod, ())]

    def words(self, pod: PodId) -> tuple[str, ...]:
        """The same, by index, model and UUID."""
        return tuple(map(str, self.of(pod)))

    def descriptors(self, pod: PodId) -> Sequence[int]:
        """Of the sockets of its leases, for the process that keeps them."""
        return [lease.socket.fileno() for lease in self._leases.get(pod, ())]

    def environment(self, seen: Sequence[Device] | None, own: Mapping[str, str]) -> dict[str, str]:
        """The variables by which a process sees these devices; `own`: those that its job sets itself.

        None: its job asks for no GPU. It then sees none, unless the job says which, or GPUs are shared.
        """
        if seen is None:
            sees_all = not self.any or devices.limits(own) or os.environ.get(devices.SHARE)
            return {} if sees_all else devices.vendor().sees(())
        return devices.vendor().sees(seen)

    def take(self, pod: Pod) -> Sequence[Device]:
        """The devices that a pod asks for. Raises PodError, with nothing taken, where others have them."""
        count = int(pod.requests.gpu)
        on_node = self._of.get(pod.node, [])
        usable = [one for one in on_node if count == 1 or not one.mig]
        if count > len(usable):
            raise PodError(
                Reason.POD_REFUSED,
                f"{pod.id.name} asks for {count} GPUs: a process sees one MIG instance only; ask for gpu: 1",
            )
        taken: list[Lease] = []
        words: list[str] = []
        for device in usable:
            if len(taken) == count:
                break
            lease = Lease.take(device)
            why = _holder(device) if lease is None else devices.reasons(device)
            if lease is not None and why:
                lease.close()
            elif lease is not None:
                taken.append(lease)
            words += why
        if len(taken) < count:
            for lease in taken:
                lease.close()
            raise PodError(Reason.DEVICES_TAKEN, "; ".join(words) or f"{pod.node} has fewer GPUs free")
        self._leases[pod.id] = taken
        for lease in taken:
            asyncio.get_running_loop().add_reader(lease.socket, devices.answer, lease.socket, pod.id.job)
        return self.of(pod.id)

    def give_back(self, pods: Collection[PodId] | None = None) -> None:
        """These pods have ended, or all; those that have none are ignored."""
        for pod in list(self._leases) if pods is None else pods:
            self._uses.pop(pod, None)
            for lease in self._leases.pop(pod, ()):
                asyncio.get_running_loop().remove_reader(lease.socket)
                lease.close()

    def taken(self) -> tuple[Taken, ...]:
        """What others have on each node, or what does not work there."""
        ours = {lease.device for leases in self._leases.values() for lease in leases}
        found: list[Taken] = []
        for node, on_node in self._of.items():
            words = [why for one in on_node if one not in ours for why in _why_not(one)]
            if words:
                found.append(Taken(node, Resources(0.0, 0.0, float(len(words))), "; ".join(words)))
        return tuple(found)

    def look(self) -> Mapping[PodId, Sequence[DeviceUse]]:
        """What the devices of each pod do now."""
        return {pod: [_use(lease.device) for lease in leases] for pod, leases in list(self._leases.items()) if leases}

    def note(self, seen: Mapping[PodId, Sequence[DeviceUse]]) -> None:
        """Keep what `look` saw, of the pods that still have their devices."""
        for pod in self._leases.keys() & seen.keys():
            before = [self._uses[pod]] if pod in self._uses else []
            if (use := DeviceUse.of([*before, *seen[pod]])) is not None:
                self._uses[pod] = use

    def used(self, pods: Collection[PodId]) -> DeviceUse | None:
        """What the devices of these pods did since this was last asked; None where they were not looked at."""
        return DeviceUse.of([self._uses.pop(pod) for pod in pods if pod in self._uses])

    def lost(self) -> Mapping[PodId, str]:
        """The pods that have a device which no longer works, and what is wrong with it."""
        held = [(pod, lease.device) for pod, leases in list(self._leases.items()) for lease in leases]
        return {pod: f"{one}: {why}" for pod, one in held if (why := devices.vendor().problem(one))}


def _use(device: Device) -> DeviceUse:
    memory, percent, watts = devices.vendor().use(device)
    busy, idle = (None, None) if percent is None else (percent / 100.0, float(percent == 0.0))
    return DeviceUse(1, busy, idle, memory, watts)


def _why_not(device: Device) -> list[str]:
    """Why a device is not given, in one line; nothing where it may be."""
    return _holder(device) or devices.reasons(device)


def _holder(device: Device) -> list[str]:
    who = devices.holder(device)
    return [f"{device} is taken by {who}"] if who else []

"""What a function answers: the operations start, status, resize, cut, stop, health (docs/project/worker-protocol.md).

Uses no threads. Messages of the zygote and the child are read when the next request comes; nothing
depends on reading them sooner (the zygote enforces the deadline, unread progress is dropped).
"""

import json
import select
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from training import ipc, request, zygote_client
from training.errors import TrainingError
from training.request import StartRequest

FINAL = ("done", "failed", "stopped")
#: Operations, each a method of Function.
OPERATIONS = ("start", "status", "resize", "cut", "stop", "health")
#: Maximum seconds of a long poll: a function handles one request at a time, and a stop must not wait behind one.
LONGEST_WAIT = 2.0
#: Ended epochs whose answers are remembered.
REMEMBERED = 32
#: How long a killed child may take to be gone.
KILL_SECONDS = 0.2
#: How long a server or scheduler waits, when the next epoch comes, for the end of the previous one.
LIFELINE_SECONDS = 0.5
#: Bytes of what is passed on to the zygote and the child.
LONGEST_MESSAGE = ipc.LARGEST_PACKET - 4096
#: How much later than the zygote's alarm the function kills it: a stopped one hears no alarm.
ALARM_GRACE_SECONDS = 5.0
#: How long a zygote may take to begin a command: it does nothing else, except importing at its start.
OBEY_SECONDS = 10.0
IMPORT_SECONDS = 60.0

Answer = tuple[int, dict]


@dataclass
class Epoch:
    """The state of one epoch in this function. `version` grows with every change."""

    token: str
    group: str
    deadline: float  # on the machine's monotonic clock
    state: str = "starting"
    version: int = 1
    progress: dict = field(default_factory=dict)
    report: dict | None = None
    error: dict | None = None

    @property
    def over(self) -> bool:
        """Whether it will not change any more."""
        return self.state in FINAL

    @property
    def can_join_again(self) -> bool:
        """Whether this member of an elastic group is gone before the epoch's end."""
        return self.over and (self.report is None or self.report.get("left", False))

    def answer(self) -> dict:
        """The body of a status answer."""
        body = {"epoch": self.token, "state": self.state, "version": self.version, "progress": self.progress}
        if self.report is not None:
            body["report"] = self.report
        if self.error is not None:
            body["error"] = self.error
        return body

    def become(self, state: str, *, report: dict | None = None, error: TrainingError | None = None) -> None:
        """Change, unless it is over."""
        if self.over or state == self.state:
            return
        self.state = state
        self.version += 1
        self.report = report
        self.error = error.as_dict() if error else None


@dataclass
class Child:
    """The process that is a member of a group, from the order to start it until the zygote says that it ended."""

    serial: int
    request: StartRequest
    socket: socket.socket
    asked_at: float = field(default_factory=time.monotonic)
    pid: int | None = None
    loading: dict | None = None  # what the zygote is loading for it, and since when
    closed: bool = False  # its socket is at the end of file
    left: bool = False  # it has left its elastic group
    newest: StartRequest | None = None  # of the last epoch that it was given after its first
    failure: TrainingError | None = None
    #: Reports of epochs that this function has not heard of yet.
    done: dict[str, dict] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether it can run another epoch, for all that is known."""
        return not self.closed and self.failure is None and not self.left


class Function:
    """The state behind one function's handler."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._zygote = zygote_client.start()
        self._child: Child | None = None
        self._serial = 0
        self._epoch: Epoch | None = None
        #: By token, the last one last: a start that comes again begins nothing.
        self._epochs: dict[str, Epoch] = {}
        #: The model that was being loaded when a zygote ended; None when another was loaded since.
        self._lost_loading: dict | None = None

    # -- operations ------------------------------------------------------------------------------------------------

    def handle(self, body: Any) -> Answer:
        """Answer one request: an HTTP status and a body."""
        try:
            body = _decoded(body)
            if body.get("op") not in OPERATIONS:
                raise TrainingError("BadRequest", f"op must be one of {', '.join(OPERATIONS)}")
            self._listen(0)
            return getattr(self, body["op"])(body)
        except TrainingError as error:
            return {"BadRequest": 400, "Busy": 409}.get(error.reason, 500), {"error": error.as_dict()}

    def start(self, body: dict) -> Answer:
        """Begin an epoch, or join it when it was begun before."""
        token = body.get("epoch")
        known = self._epochs.get(token) if isinstance(token, str) else None
        if known is not None and not (body.get("elastic") is True and known.can_join_again):
            return 202, {"epoch": token, "state": known.state}
        asked = request.parse(body, self.role)
        _passes(asked.as_dict())
        if self.role != "worker":
            # A worker's "done" may have reached the caller a moment before it reaches this function.
            until = time.monotonic() + LIFELINE_SECONDS
            while self._under_way is not None and (left := until - time.monotonic()) > 0:
                self._listen(left)
        if (busy := self._under_way) is not None:
            raise TrainingError("Busy", f"epoch {busy.token} of group {busy.group} is {busy.state}")
        child = self._child
        if child is not None and child.usable and child.request.group == asked.group:
            self._go_on(child, asked)
        else:
            self._make_current(asked)
            self._fork(asked)
        return 202, {"epoch": asked.epoch, "state": self._epoch.state}

    def status(self, body: dict) -> Answer:
        """How an epoch is; waits up to `wait` seconds for a version other than `seen`."""
        token, wait, seen = body.get("epoch"), body.get("wait", 0), body.get("seen", 0)
        if not isinstance(token, str):
            raise TrainingError("BadRequest", "epoch must be a text")
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= LONGEST_WAIT:
            raise TrainingError("BadRequest", f"wait must be 0 to {LONGEST_WAIT:g} seconds")
        until = time.monotonic() + wait
        while True:
            epoch = self._epochs.get(token)
            if epoch is None:
                return 200, {"epoch": token, "state": "unknown", "version": 0, "progress": {}}
            left = until - time.monotonic()
            if epoch.over or epoch.version != seen or left <= 0:
                return 200, epoch.answer()
            self._listen(left)

    def resize(self, body: dict) -> Answer:
        """From now on these workers, and servers, by rank, belong to the elastic group of this scheduler."""
        group, members, servers = (body.get(key) for key in ("group", "members", "server_members"))
        child = self._elastic_group(group)
        for name, value in (("members", members), ("server_members", [0] if servers is None else servers)):
            if not request.ranks(value):
                raise TrainingError("BadRequest", f"{name} is {value!r}; it must be one or more ranks, each once")
        _passes([members, servers])
        ipc.send(child.socket, {"resize": members, "servers": servers})
        return 200, {"group": group, "members": members} | ({"server_members": servers} if servers else {})

    def cut(self, body: dict) -> Answer:
        """The epoch of the elastic group of this scheduler ends after the step under way."""
        group, token = body.get("group"), body.get("epoch")
        child = self._elastic_group(group)
        _passes(token)
        ipc.send(child.socket, {"cut": token})
        return 200, {"group": group, "epoch": token}

    def _elastic_group(self, group: object) -> Child:
        if self.role != "scheduler":
            raise TrainingError("BadRequest", f"this function is a {self.role}; this is for the scheduler")
        child = self._child
        if child is None or not child.usable or child.request.group != group or not child.request.elastic:
            raise TrainingError("BadRequest", f"no elastic group {group!r} here; start it with elastic: true")
        return child

    def stop(self, body: dict) -> Answer:
        """End the group, named by its id or by its current epoch. Naming one that is not there is no error."""
        group, token = body.get("group"), body.get("epoch")
        if not isinstance(group, str) and not isinstance(token, str):
            raise TrainingError("BadRequest", "stop needs a group or an epoch")
        epoch = self._epoch
        if epoch is not None and (group == epoch.group or token == epoch.token):
            epoch.become("stopped")
            self._end_child()
        return 200, {"state": "stopped"}

    def health(self, body: dict) -> Answer:
        """Whether the function is warm, and what it is doing."""
        del body
        state = "idle" if self._under_way is None else self._under_way.state
        if self._zygote.imports_seconds is None:
            state = "importing"
        return 200, {
            "state": state,
            "role": self.role,
            "zygote_pid": self._zygote.pid,
            "child_pid": self._child.pid if self._child else None,
            "group": self._child.request.group if self._child else None,
            "imports_seconds": self._zygote.imports_seconds,
            "from_template": self._zygote.from_template,
        }

    @property
    def leaves(self) -> bool:
        """Whether it is a member of an elastic group in the middle of an epoch, and would end more than itself."""
        self._listen(0)
        child = self._child
        return child is not None and child.usable and child.request.elastic and self._under_way is not None

    # -- starting and ending ---------------------------------------------------------------------------------------

    @property
    def _under_way(self) -> Epoch | None:
        return self._epoch if self._epoch is not None and not self._epoch.over else None

    def _make_current(self, asked: StartRequest) -> Epoch:
        self._epoch = Epoch(asked.epoch, asked.group, time.monotonic() + asked.deadline)
        self._epochs.pop(asked.epoch, None)
        self._epochs[asked.epoch] = self._epoch
        while len(self._epochs) > REMEMBERED:
            del self._epochs[next(iter(self._epochs))]
        return self._epoch

    def _fork(self, asked: StartRequest) -> None:
        """Have a child forked; an idle one of an old group is ended by the zygote first."""
        self._drop_child()
        self._serial += 1
        ours, theirs = ipc.pair()
        start = {"op": "start", "serial": self._serial, "deadline": self._epoch.deadline, "request": asked.as_dict()}
        with theirs:
            if not ipc.send(self._zygote.socket, start, (theirs.fileno(),)):
                self._replace_zygote()
                ipc.send(self._zygote.socket, start, (theirs.fileno(),))
        self._child = Child(self._serial, asked, ours)

    def _go_on(self, child: Child, asked: StartRequest) -> None:
        """Let the formed group's member run another epoch: a message, not a start."""
        before, now = child.request.group_part(), asked.group_part()
        changed = [name for name in now if now[name] != before[name]]
        if changed:
            message = f"group {asked.group} was formed with another {', '.join(changed)}; use another group id"
            raise TrainingError("BadRequest", message)
        epoch = self._make_current(asked)
        ipc.send(self._zygote.socket, {"op": "deadline", "serial": child.serial, "at": epoch.deadline})
        child.newest = asked
        if self.role == "worker" or asked.elastic:
            ipc.send(child.socket, {"request": asked.as_dict()})
        if self.role == "worker":
            return
        if asked.epoch in child.done:
            epoch.become("done", report=child.done[asked.epoch])
        else:
            epoch.become("training")

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.socket.close()
            self._child = None

    def _end_child(self) -> None:
        """Kill the child and wait until it is gone; a zygote that does not answer is killed as well."""
        if self._child is None:
            return
        child = self._child
        ipc.send(self._zygote.socket, {"op": "kill", "serial": child.serial})
        until = time.monotonic() + KILL_SECONDS
        while self._child is child and (left := until - time.monotonic()) > 0:
            self._listen(left)
        if self._child is child:  # the zygote loads for it, in the user's code
            self._zygote.kill()
            self._drop_child()
            self._replace_zygote()

    def _replace_zygote(self) -> None:
        self._zygote.close()
        self._zygote = zygote_client.start()

    # -- hearing ---------------------------------------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        """Take in what zygote and child have sent; wait up to `seconds` for something."""
        while True:
            ends = [self._zygote.socket]
            if self._child is not None and not self._child.closed:
                ends.append(self._child.socket)
            ready, _, _ = select.select(ends, [], [], 0)
            if not ready:
                # Only now: unread messages may say that all is well.
                self._lose_stuck_zygote()
                ready, _, _ = select.select(ends, [], [], seconds)
            if not ready:
                return
            # The child first: its last words explain what the zygote says about its end.
            if len(ends) > 1 and ends[1] in ready:
                self._hear_child(self._child)
            elif (message := ipc.receive(self._zygote.socket)[0]) is not None:
                self._hear_zygote(message)
            else:
                self._lost_zygote()
            seconds = 0

    def _lose_stuck_zygote(self) -> None:
        """Kill a zygote that does not begin in time, or that does not end loading: it is stopped."""
        child, now = self._child, time.monotonic()
        if child is None or child.pid is not None:
            return
        if child.loading is not None:
            late = now > child.loading["until"] + ALARM_GRACE_SECONDS
        elif self._zygote.ready_at is None:
            late = now > child.asked_at + IMPORT_SECONDS
        else:
            late = now > max(child.asked_at, self._zygote.ready_at) + OBEY_SECONDS
        if late:
            child.loading = None  # what it was loading is not to blame
            self._zygote.kill()

    def _hear_child(self, child: Child) -> None:
        message, _ = ipc.receive(child.socket)
        if message is None:
            child.closed = True
            return
        epoch = self._epochs.get(message["epoch"])
        event = message["event"]
        if event == "failed":
            child.failure = _failure(message)
            if self._epoch is not None and self._epoch.group == child.request.group:
                self._epoch.become("failed", error=child.failure)
        elif event == "done":
            child.left = message["report"].get("left", False)
            if epoch is None:
                child.done[message["epoch"]] = message["report"]
            else:
                epoch.become("done", report=message["report"])
        elif epoch is not None and not epoch.over:
            if event == "state":
                epoch.become(message["state"])
            elif event == "progress":
                epoch.progress = message["progress"]
                epoch.version += 1

    def _hear_zygote(self, message: dict) -> None:
        event = message["event"]
        if event == "ready":
            self._zygote.imports_seconds = message["imports_seconds"]
            self._zygote.ready_at = time.monotonic()
            return
        if event == "unable":
            self._zygote.unable = message
            return
        child = self._child
        if child is None or message["serial"] != child.serial:
            return
        if event == "loading":
            child.loading = message
        elif event == "forked":
            child.pid, child.loading = message["pid"], None
            self._lost_loading = None
            # The child says so too, unless it is stopped before it can say anything.
            if self._epoch is not None and self._epoch.state == "starting":
                self._epoch.become("forming")
        elif event == "failed":
            self._fail(_failure(message))
            self._drop_child()
            if message.get("last"):
                self._replace_zygote()
        elif event == "ended":
            self._child_ended(child, message)

    def _child_ended(self, child: Child, message: dict) -> None:
        while not child.closed:  # the kernel keeps what it sent before its end
            self._hear_child(child)
        if (epoch := self._under_way) is not None:
            if message["cause"] == "deadline" and time.monotonic() >= epoch.deadline:
                self._fail(TrainingError("DeadlineExceeded", f"the group was {epoch.state} still at its deadline"))
            elif message["cause"] == "deadline":
                self._fail(TrainingError("PeerLost", "the group had just ended, at the deadline of the epoch before"))
            elif message["exit_status"] == 0 and child.newest is not None:
                self._fork(child.newest)  # it had left its elastic group before it heard of this epoch
                return
            else:
                self._fail(how_it_ended(child.request, message))
        self._drop_child()

    def _fail(self, error: TrainingError) -> None:
        if self._epoch is not None:
            self._epoch.become("failed", error=error)

    def _lost_zygote(self) -> None:
        """The zygote is gone, and its child with it: say why, and start another."""
        child, self._child = self._child, None
        if child is not None:
            child.socket.close()
            loading = child.loading
            if self._zygote.unable is not None:
                self._fail(_failure(self._zygote.unable))
            elif loading is None:
                self._fail(TrainingError("PeerLost", f"the function's own process {self._zygote.pid} was killed"))
            elif time.monotonic() > loading["until"]:
                self._fail(TrainingError(loading["reason"], loading["message"]))
            else:
                # It may have been killed from outside at that moment; a model file that ends its process does so again.
                again = loading["what"] == "model" and self._lost_loading == child.request.model
                self._lost_loading = child.request.model if loading["what"] == "model" else None
                words = f"the function's process ended while loading the {loading['what']}"
                self._fail(
                    TrainingError("ModelInvalid", f"{words}, twice") if again else TrainingError("PeerLost", words)
                )
        self._replace_zygote()


def _decoded(body: Any) -> dict:
    """Nuclio hands over an object when the content type is exactly application/json, else bytes."""
    if isinstance(body, bytes | str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise TrainingError("BadRequest", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise TrainingError("BadRequest", "the body must be a JSON object")
    return body


def _passes(what: Any) -> None:
    """Refuse what is too long for the messages to this function's own processes."""
    if (size := len(json.dumps(what))) > LONGEST_MESSAGE:
        raise TrainingError("BadRequest", f"the message has {size} bytes; at most {LONGEST_MESSAGE}")


def _failure(message: dict) -> TrainingError:
    return TrainingError(message["reason"], message["message"], traced=message.get("traced", False))


def how_it_ended(asked: StartRequest, ended: dict) -> TrainingError:
    """The message for a child that ended without one of its own."""
    rss = f"its largest size was {ended['max_rss_gib']:.2f} GiB"
    limit = f", its limit {asked.memory:g} GiB" if asked.memory is not None else ""
    if ended["out_of_memory"]:
        return TrainingError("OutOfMemory", f"the kernel killed {asked.name} for want of memory; {rss}{limit}")
    if ended["signal"] is not None:
        return TrainingError("PeerLost", f"{asked.name} was killed by signal {ended['signal']}; {rss}{limit}")
    return TrainingError("PeerLost", f"{asked.name} ended with status {ended['exit_status']}; {rss}{limit}")

"""What runs inside a Slurm job: one copy of this file in the job's folder. It needs Python 3.6 and nothing else.

`rank.py batch` is the batch script: it starts `rank.py` once for each worker, by srun. Each worker's copy starts the
program, keeps its deadline and writes its log, `rank-N.log`: lines of a time, a kind and a text. The kinds are `began`
(the node), `line` (what the program prints), `status` and `report` (what it sends) and `ended` (how it ended, as JSON).
Slurm's own state does not say it: a job whose tasks were signalled has COMPLETED, with exit code 0.

`control` is renewed by the handler: `seconds` after which the program is to end, and with `end` the seconds that it
then has. Both count from when the file was written, by the clock of the file system, so that no clocks need agree.
Without a handler nothing renews it, and the program ends; so it does where the file system hangs. Every few seconds the
log gets a new time of change, by which the handler sees that the worker runs, also while the disk is full.
"""

import base64
import ctypes
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn

FOLDER = os.path.dirname(os.path.abspath(__file__))
#: Seconds between two looks at the program, at what the handler has written, and between two writes of what is printed.
LOOK, CONTROL_LOOK, WRITE = 0.05, 0.5, 0.1
#: Looks at what the handler has written between two signs of life.
BEAT = 10
#: Bytes of a line; of a request; requests at once, and so many a second.
LONGEST, LONGEST_REQUEST, BURST, PER_SECOND = 16384, 65536, 20.0, 10.0
#: Seconds before Slurm's time limit by which the program is gone; in which a last word is written to a full disk.
WALL_MARGIN, LAST_WORD = 5.0, 60.0
#: A program that asks whether it is to end gets SIGTERM so many seconds before SIGKILL, or at half its grace period.
LAST_WARNING = 5.0
#: Seconds between two checkpoints that a program is asked for.
CHECKPOINT = 300.0


class Log:
    """The worker's log. A time is there once, so that a reader can say by the last one what it has read."""

    def __init__(self, path):
        self.path, self.last, self.lock, self.torn = path, 0, threading.Lock(), b""

    def write(self, kind, *texts):
        """Append them; whether they are whole. A file that is opened anew is seen soonest by others."""
        with self.lock:
            data = self.torn
            for text in texts:
                self.last = max(int(time.time() * 1e9), self.last + 1)
                data += b"%d %s " % (self.last, kind.encode()) + text.encode("utf-8", "replace")[:LONGEST] + b"\n"
            self.torn = b"\n"
            try:
                with open(self.path, "ab", 0) as file:
                    if file.write(data) == len(data):
                        self.torn = b""
            except OSError:  # a full disk does not end the program
                pass
            return not self.torn


class Program:
    """One worker's program, from its start until nothing of it is left."""

    def __init__(self, order, rank):
        self.order, self.rank, self.log = order, rank, Log(os.path.join(FOLDER, "rank-%d.log" % rank))
        self.cause, self.stop, self.asks, self.process = "", False, False, None
        self.terminate = self.kill = self.wall = float("inf")
        self.until, self.seen, self.hold = time.time() + 30.0, None, order.get("ahead", False)
        self.tokens, self.at, self.checkpoint = BURST, time.time(), time.time() + CHECKPOINT
        if os.environ.get("SLURM_JOB_END_TIME", "").isdigit():
            self.wall = float(os.environ["SLURM_JOB_END_TIME"]) - WALL_MARGIN
        elif "COACH_BEGAN" in os.environ:
            self.wall = float(os.environ["COACH_BEGAN"]) + order["wall"] - WALL_MARGIN

    def run(self):
        self.log.write("began", os.environ.get("SLURMD_NODENAME") or socket.gethostname())
        #: What the clock of the file system is ahead of this machine's.
        self.offset = os.stat(self.log.path).st_mtime - time.time()
        signal.signal(signal.SIGTERM, lambda *_: self.ask_to_end("slurm", self.order["grace"]))
        for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(each, lambda number, _: self.process and self.process.send_signal(number))
        began, words, code = time.time(), "", 143
        self.obey()
        self.keep_deadline()
        threading.Thread(target=self.hear, daemon=True).start()
        while self.hold and not self.cause:  # until a smaller job of the same program has ended
            self.keep_deadline()
            time.sleep(LOOK)
        if not self.cause:
            try:
                code = self.follow(self.start())
            except OSError as error:
                code, self.cause = 127, "cannot start"
                words = "%s: %s" % (error.filename or self.order["command"][0], error.strerror)
        ended = {"code": code, "cause": self.cause, "words": words, "seconds": time.time() - began}
        while not self.log.write("ended", json.dumps(ended)) and time.time() < began + ended["seconds"] + LAST_WORD:
            time.sleep(1.0)

    def start(self):
        env = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": os.environ.get("SLURM_CPUS_PER_TASK", "1")}
        env.update(os.environ)
        if self.order["groups"]:
            env.update(self.order["groups"][self.rank])
            for name in ("MASTER_ADDR", "MASTER_PORT"):
                env[name] = env["PET_" + name] = os.environ["COACH_" + name]
        env.update(self.order["env"], **self.order["own"])
        server = self.offer(env)
        self.process = subprocess.Popen(
            self.order["command"],
            cwd=self.order["directory"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: prctl(1, signal.SIGKILL),  # noqa: PLW1509 - no thread runs yet; it ends with this process
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return self.process

    def follow(self, process):
        reader = threading.Thread(target=self.read, args=(process.stdout.fileno(),), daemon=True)
        reader.start()
        while process.poll() is None:
            self.keep_deadline()
            time.sleep(LOOK)
        late = time.time() + 5.0
        while below() and time.time() < late:
            kill(below())
            time.sleep(0.01)
        reader.join(5.0)
        return 128 - process.returncode if process.returncode < 0 else process.returncode

    def read(self, printed):
        rest, data = b"", b"-"
        while data:
            data = os.read(printed, 1 << 16)
            lines = (rest + data).split(b"\n")
            rest = lines.pop() if data and len(lines[-1]) < LONGEST else b""
            texts = [line.decode("utf-8", "replace") for line in lines if line.strip()]
            if texts:
                self.log.write("line", *texts)
                time.sleep(WRITE)

    def keep_deadline(self):
        now, grace = time.time(), self.order["grace"]
        if now >= self.kill:
            kill(below())
        elif now >= self.terminate and self.process:
            self.terminate = float("inf")
            self.process.terminate()
        elif now >= self.wall - grace:
            self.ask_to_end("wall", grace)
        elif now >= self.until:
            self.ask_to_end("deadline", grace)

    def hear(self):
        """Obey the handler and show it that this worker runs; a file system that hangs stops this thread alone."""
        while True:
            for _ in range(BEAT):
                time.sleep(CONTROL_LOOK)
                self.obey()
            try:
                os.utime(self.log.path)
            except OSError:
                pass

    def obey(self):
        """Read what the handler wants; what cannot be read now is read later."""
        try:
            with open(os.path.join(FOLDER, "control"), "rb") as file:
                written, wanted = os.fstat(file.fileno()).st_mtime - self.offset, json.loads(file.read().decode())
        except (OSError, ValueError):
            return
        if (written, wanted) != self.seen:
            self.seen = written, wanted
            if "end" in wanted:
                self.ask_to_end(wanted["cause"], written + wanted["end"] - time.time())
            elif not self.cause:
                self.until, self.hold = written + wanted["seconds"], self.hold and "hold" in wanted

    def ask_to_end(self, cause, grace):
        """SIGTERM, and SIGKILL after `grace` seconds; a program that asks is answered first, and gets it later."""
        now, first = time.time(), not self.cause
        self.cause, self.stop = self.cause or cause, True
        self.kill = min(self.kill, now + max(0.0, grace))
        if first:
            left = self.kill - now
            self.terminate = max(now, self.kill - min(LAST_WARNING, left / 2)) if self.asks else now

    def offer(self, env):
        """Kubeflow's status server, for this program alone; its variables are added."""
        path, token = os.path.join(FOLDER, "rank-%d.token" % self.rank), base64.urlsafe_b64encode(os.urandom(24))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(token)
        server = Server(("127.0.0.1", 0), Request)
        server.program, server.expected = self, "Bearer " + token.decode()
        env["KUBEFLOW_TRAINER_SERVER_URL"] = "http://127.0.0.1:%d/status" % server.server_address[1]
        env["KUBEFLOW_TRAINER_SERVER_TOKEN"] = path
        env["KUBEFLOW_TRAINER_SERVER_CA_CERT"] = ssl.get_default_verify_paths().cafile or ""
        for name in ("no_proxy", "NO_PROXY"):
            env[name] = ",".join(filter(None, (env.get(name), "127.0.0.1")))
        return server

    def answer(self, request):
        """The answer to a request, with its code."""
        now = time.time()
        self.tokens, self.at = min(BURST, self.tokens + PER_SECOND * (now - self.at)), now
        if self.tokens < 1.0:
            return 429, {"error": "at most %g requests a second" % PER_SECOND}
        self.tokens -= 1.0
        if isinstance(request.get("trainerStatus"), dict):
            metrics = [one for one in request["trainerStatus"].get("metrics") or [] if isinstance(one, dict)]
            values = {str(one["name"]): one["value"] for one in metrics if "name" in one and "value" in one}
            self.log.write("status", json.dumps(values))
            return 200, {}
        if isinstance(request.get("values"), dict):
            self.log.write("report", json.dumps(request["values"]))
        self.asks = self.asks or bool(request.get("asks"))
        checkpoint = now >= self.checkpoint
        self.checkpoint = now + CHECKPOINT if checkpoint else self.checkpoint
        return 200, {"stop": self.stop, "checkpoint": checkpoint}


class Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    program = expected = None


class Request(BaseHTTPRequestHandler):
    timeout = 5.0

    def do_POST(self):
        code, answer = 401, {"error": "not the token of this program"}
        if self.headers.get("Authorization", "") == self.server.expected:
            try:
                length = int(self.headers.get("Content-Length", "-1"))
                if not 0 <= length <= LONGEST_REQUEST:
                    raise ValueError
                code, answer = self.server.program.answer(json.loads(self.rfile.read(length).decode()))
            except (ValueError, AttributeError, TypeError, RecursionError):
                code, answer = 400, {"error": "not a JSON object of at most %d bytes" % LONGEST_REQUEST}
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def below():
    """The processes below this one that run; orphans are given to it."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] not in b"ZX" or int(fields[17]) > 1:  # its first thread may have ended alone
                parents[int(name)] = int(fields[1])
        except (OSError, IndexError):
            continue
    found, more = [], [os.getpid()]
    while more:
        more = [pid for pid, parent in parents.items() if parent in more]
        found += more
    return found


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def batch(order):
    """Start the workers: on the first node, where they meet. A job that Slurm starts again has been given up."""
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        return
    with socket.socket() as free:
        free.bind(("", 0))
        os.environ["COACH_MASTER_PORT"] = str(free.getsockname()[1])
    os.environ.update(COACH_MASTER_ADDR=socket.gethostname(), COACH_BEGAN=str(time.time()))
    os.execvp("srun", ["srun", *order["srun"], sys.executable, os.path.abspath(__file__)])  # noqa: S607


if __name__ == "__main__":
    with open(os.path.join(FOLDER, "order.json")) as order_file:
        read = json.load(order_file)
    if sys.argv[1:] == ["batch"]:
        batch(read)
    else:
        prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        Program(read, int(os.environ["SLURM_PROCID"])).run()

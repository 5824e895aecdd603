"""The command of a container that runs one function: `python3 -m coach.platforms.local.host.pod worker`.

Serves the function on port 8080 and its health (/live, /ready) on 8082 of every address. Its log goes to standard
output, its files to a folder of their own in the place for temporary files. SIGTERM ends it at once while the function
starts, later as soon as the event in hand is done. With --idle-seconds it ends without its handler, too.

Without a role it does as Nuclio's processor would in its place: it runs the function that Nuclio's controller has
written down in the container, /etc/nuclio/config/processor/processor.yaml.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from coach.core.errors import UserError
from coach.platforms.local.host import __main__ as host
from coach.platforms.local.host import config as configuration
from coach.platforms.local.host.launch import CONFIG_ARGUMENTS, write_config

ROLES = ("worker", "server", "scheduler")
#: Where Nuclio's controller mounts what it has written for its processor.
NUCLIO = Path("/etc/nuclio/config/processor/processor.yaml")


def main(argv: list[str] | None = None) -> int:
    """Run the host of one function until a signal ends it."""
    args = _parse(argv)
    if os.getpid() == 1:
        _leave_init_behind()
    try:
        if not args.role:
            _read_nuclio(args)
    except (UserError, configuration.ConfigError) as error:
        sys.stderr.write(f"host: {error}\n")
        return host.EXIT_CONFIG
    with tempfile.TemporaryDirectory(prefix=f"coach-{args.role}-") as run_dir:
        try:
            environment = write_config(
                args.functions / args.role,
                args.name or f"coach-{args.role}",
                f"0.0.0.0:{args.port}",
                Path(run_dir),
                python_path=(args.functions,),
                trigger=args.trigger,
                health=f"0.0.0.0:{args.health_port}",
            )
        except UserError as error:
            sys.stderr.write(f"host: {error}\n")
            return host.EXIT_CONFIG
        os.environ.update(environment)
        os.chdir(run_dir)
        idle = ["--idle-seconds", str(args.idle_seconds)] if args.idle_seconds else []
        return host.main([*CONFIG_ARGUMENTS, *idle])


def _read_nuclio(args: argparse.Namespace) -> None:
    """Take role, name and trigger from Nuclio's file. Raises ConfigError, UserError."""
    config = configuration.read(args.nuclio, None)
    args.role = config.handler.partition(".")[0]
    if args.role not in ROLES:
        raise UserError(f"{args.nuclio}: spec.handler is {config.handler}: none of Coach's functions")
    args.name = args.name or config.name
    args.trigger = {
        "numWorkers": config.workers,
        "workerAvailabilityTimeoutMilliseconds": round(config.availability_timeout * 1000),
        "workerTerminationTimeout": f"{config.termination_timeout:g}s",
    }


def _leave_init_behind() -> None:
    """Return in a child; this process stays the container's first one, which two things are expected of.

    A member of a group whose zygote was killed becomes a child of process 1, which must wait for it. And the kernel
    keeps signals from process 1 that it has no handler for: the host has none while its function starts.
    """
    both = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    child = os.fork()
    if child:
        for number in both:
            signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
    while child:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="coach.platforms.local.host.pod", description=__doc__)
    parser.add_argument(
        "role", nargs="?", choices=ROLES, help="which function to run; default: Nuclio's file says"
    )
    parser.add_argument("--nuclio", type=Path, default=NUCLIO, help=f"that file; default: {NUCLIO}")
    parser.add_argument("--name", help="its name in the log; default: coach- and the role")
    functions = os.environ.get("COACH_FUNCTIONS", "functions")
    parser.add_argument(
        "--functions", type=Path, default=functions, help="their folder; default: COACH_FUNCTIONS"
    )
    parser.add_argument("--port", type=int, default=8080, help="of the function")
    parser.add_argument("--health-port", type=int, default=8082, help="of /live and /ready")
    parser.add_argument(
        "--idle-seconds", type=float, help="end when no request came for so long; default: never"
    )
    return parser.parse_args(argv, argparse.Namespace(trigger=None))


if __name__ == "__main__":
    sys.exit(main())

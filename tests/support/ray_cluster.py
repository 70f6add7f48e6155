"""A Ray cluster of two nodes in a network of its own, and a sweep on it; run by its test.

``unshare -n ... python ray_cluster.py FOLDER [FLAG...]``: only loopback is there, so no other
machine can reach the cluster; whoever could would need the token.
"""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

PORT = "6379"
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PATIENCE = 150.0  # a busy machine; a quiet one takes seconds


def loopback_up():
    """Switch the interface on, as ``ip link set lo up`` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        found = fcntl.ioctl(any_socket, 0x8913, asked)  # SIOCGIFFLAGS
        flags = struct.unpack("16sh14x", found)[1] | 0x1  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", flags))  # SIOCSIFFLAGS


@contextlib.contextmanager
def node(folder, name, *words):
    """Start a node; it ends with the process that was started, by its id."""
    log = folder / f"{name}.log"
    with log.open("wb") as said:
        started = subprocess.Popen(  # noqa: S603
            [
                *RAY,
                "start",
                *words,
                "--num-cpus=1",
                "--block",
                "--disable-usage-stats",
                "--include-log-monitor=false",
            ],
            stdout=said,
            stderr=said,
        )
    try:
        yield started, log
    finally:
        started.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(8)
        started.kill()


def wait_for(log, process, text="Ray runtime started"):
    late = time.monotonic() + PATIENCE
    while text not in log.read_text():
        if process.poll() is not None or time.monotonic() > late:
            sys.exit(f"no {text!r}: {log.read_text()[-800:]}")
        time.sleep(0.05)


def main(folder, *words):
    loopback_up()
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",  # on a busy machine Ray's own 15 would wait for all others
    )
    # A socket's path must be short, whatever the test's folder is called.
    head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}/r"]
    with node(folder, "head", *head) as (first, log):
        wait_for(log, first)
        with node(folder, "worker", f"--address=127.0.0.1:{PORT}") as (second, other):
            wait_for(other, second)
            done = subprocess.run(  # noqa: S603
                [
                    sys.executable,
                    "-m",
                    "tacit.cli",
                    "sweep",
                    str(folder / "sweep.toml"),
                    "--store",
                    str(folder / "store"),
                    "--on",
                    "ray",
                    "--address",
                    f"127.0.0.1:{PORT}",
                    "--json",
                    *words,
                ],
                check=False,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
    print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

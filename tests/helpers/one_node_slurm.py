"""A SLURM of one node on this machine within a block, with its own keys, ports, state and logs in one folder.

    python tests/helpers/one_node_slurm.py python -m study sweep cluster=slurm      # any command, with it around

Needs Debian's slurm-wlm and munge, and root. It asks nothing of systemd or cgroups, and keeps no accounts: `sacct`
fails there, as it does on small clusters.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

CPUS = 4
"""CPUs that the node reports, independent of the machine."""
SECONDS = 60
"""Seconds within which it must be up."""
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str | None:
    """Why SLURM cannot run here; None if it can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "squeue") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "a SLURM of one's own needs root"


@contextmanager
def one_node_slurm() -> Iterator[Path]:
    """Run SLURM with its SLURM_CONF in the environment; yields the folder with its logs.

    Raises:
        RuntimeError: it did not come up; with what its logs say last.
    """
    with tempfile.TemporaryDirectory(prefix="slurm") as name, ExitStack() as running:
        folder = Path(name)
        for part in ("state", "spool"):
            (folder / part).mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        ports = _free_ports(2)
        (folder / "slurm.conf").write_text(
            CONF.format(folder=folder, host=socket.gethostname().partition(".")[0], ports=ports, cpus=CPUS)
        )
        running.enter_context(mock.patch.dict(os.environ, SLURM_CONF=str(folder / "slurm.conf")))
        own = [f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("socket", "pid-file", "log-file")]
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--seed-file={folder}/seed", *own]
        for command in (munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c"]):
            _start(command, folder, running)
            if command is munged:
                _wait(lambda: (folder / "munge.socket").exists(), folder)
        _wait(lambda: _said("sinfo", "--noheader", "--format=%t").strip() == "idle", folder)
        running.callback(_end_jobs)
        yield folder


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(command: list[str], folder: Path, running: ExitStack) -> None:
    log = running.enter_context((folder / f"{command[0]}.out").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def end() -> None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    running.callback(end)


def _end_jobs() -> None:
    """Processes of SLURM that must not outlive its daemons."""
    subprocess.run(["scancel", "--full", "--signal=KILL", "--state=RUNNING"], capture_output=True, timeout=30)
    subprocess.run(["scancel", "--me"], capture_output=True, timeout=30)
    deadline = time.monotonic() + 20
    while _said("squeue", "--noheader").strip() and time.monotonic() < deadline:
        time.sleep(0.5)


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


def _wait(condition, folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            logs = [f"{path.name}: {path.read_text()[-1000:]}" for path in sorted(folder.glob("*.[lo][ou]*"))]
            raise RuntimeError("\n".join(["SLURM did not come up", *logs]))
        time.sleep(0.2)


if __name__ == "__main__":
    if why := lacking():
        sys.exit(why)
    with one_node_slurm():
        sys.exit(subprocess.run(sys.argv[1:]).returncode)

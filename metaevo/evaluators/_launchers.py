"""The place of a process in a job that an MPI launcher started.

Open MPI sets OMPI_COMM_WORLD_*. MPICH's and Intel MPI's Hydra sets PMI_* and
MPI_LOCAL*, and passes on messages of the processes (PMI-1). MPI itself is not used.
"""

from __future__ import annotations

import os
import socket
import zlib
from typing import NamedTuple

from metaevo.errors import ConfigError

_NAMES = {
    "open mpi": tuple(
        f"OMPI_COMM_WORLD_{x}" for x in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ),
    "hydra": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}


class Place(NamedTuple):
    """One process of a job."""

    launcher: str  # "open mpi" or "hydra"
    rank: int
    size: int
    local_rank: int  # among the processes of this host
    local_size: int


def place() -> Place | None:
    """Return this process's place; None: no such launcher started it."""
    for launcher, names in _NAMES.items():
        numbers = [os.environ.get(name, "") for name in names]
        if all(x.isdigit() for x in numbers):
            return Place(launcher, *map(int, numbers))
    return None


def coordinator(here: Place) -> str | None:
    """Return HOST:PORT on which the first process may serve, the same in all processes.

    All processes must call it. None: JAX finds the address, as of Open MPI 4 on
    several hosts.

    Raises:
        ConfigError: The launcher does not tell where the first process is.
    """
    one_host = here.local_size == here.size
    if here.launcher == "hydra":
        return _told_by_first(here, "127.0.0.1" if one_host else socket.gethostname())
    job = os.environ.get("PMIX_NAMESPACE")
    if one_host and job:
        # Linux opens connections from ports below 61000.
        return f"127.0.0.1:{61_440 + zlib.crc32(job.encode()) % 4096}"
    if "OMPI_MCA_orte_hnp_uri" in os.environ:
        return None
    raise ConfigError(
        "run.distributed=true: this mpiexec does not say where the first process is; "
        "give run.coordinator=HOST:PORT, its host and a free port"
    )


def check_free(address: str) -> None:
    """Check that this process can serve at HOST:PORT.

    gRPC would share a port with another job, and mix up their processes.

    Raises:
        ConfigError: The port is in use, or is none.
    """
    port = address.rpartition(":")[2]
    try:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("", int(port)))
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"run.distributed=true: the first process cannot serve at {address}: "
            f"{error}; give run.coordinator=HOST:PORT with a free port"
        ) from None


def _told_by_first(here: Place, host: str) -> str:
    try:
        with os.fdopen(os.dup(int(os.environ["PMI_FD"])), "r+b", buffering=0) as file:

            def ask(command: str) -> dict[str, str]:
                file.write(f"cmd={command}\n".encode())
                answer = file.readline().decode().split()
                return dict(x.split("=", 1) for x in answer if "=" in x)

            ask("init pmi_version=1 pmi_subversion=1")
            space = ask("get_my_kvsname")["kvsname"]
            if here.rank == 0:
                with socket.socket() as free:
                    free.bind(("", 0))
                    port = free.getsockname()[1]
                ask(f"put kvsname={space} key=metaevo value={host}:{port}")
            ask("barrier_in")
            address = ask(f"get kvsname={space} key=metaevo")["value"]
            ask("finalize")
            return address
    except (OSError, KeyError, ValueError):
        raise ConfigError(
            "run.distributed=true: mpiexec does not pass messages on (PMI_FD); give "
            "run.coordinator=HOST:PORT, the host of the first process and a free port"
        ) from None

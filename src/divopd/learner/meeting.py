"""Where the ranks of a learner meet: a store of torch over TCP that the first rank serves, on one address only.

    first rank   listens on the address that the configuration says (loopback unless it says another), tells the place
    the others   learn the place from whoever started them, connect, and see by its token that it is theirs

The token keeps the ranks of two runs apart; it is no secret against who can reach the port (SECURITY.md).
"""

import fcntl
import json
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistNetworkError, TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from divopd.errors import DivopdError, InputError

PATIENCE = timedelta(minutes=10)  # for a rank that still loads its libraries or its model
POLL_S = 0.05
GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux: the address of a network interface


@dataclass(frozen=True)
class Place:
    """Where to connect, and what is to be found there."""

    address: str
    port: int
    token: str


def write_place(file: Path, place: Place) -> None:
    """Tell a place to ranks that see the same disk; readable by the owner only, and never half written."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(asdict(place)), encoding="utf-8")
    partial.replace(file)


def read_place(file: Path) -> Place | None:
    """The place that was told, or None."""
    try:
        return Place(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def serve(address: str, port: int, *, ranks: int) -> tuple[TCPStore, Place]:
    """Open the meeting place; port 0 takes a free one."""
    try:
        listening = socket.create_server((address, port))
    except OSError as error:
        raise InputError(
            f"the ranks of the learner cannot meet at {address}:{port} ({error.strerror}); learner.address must be one "
            "of the first machine's own, and learner.port free there, or 0 for any"
        ) from None
    port = listening.getsockname()[1]
    # torch's own way to listen takes all addresses of the machine
    store = TCPStore(
        address,
        port,
        ranks,
        is_master=True,
        timeout=PATIENCE,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    place = Place(address, port, secrets.token_hex(16))
    store.set("token", place.token)
    return store, place


def find(told: Callable[[], Place | None], check: Callable[[], None]) -> TCPStore:
    """Wait until the place is told, and connect. `check` is called meanwhile, and may raise."""
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while (place := told()) is None:
        check()
        if time.monotonic() > deadline:
            raise DivopdError(f"the first rank of the learner told no meeting place in {PATIENCE}; its log says why")
        time.sleep(POLL_S)
    return connect(place)


def connect(place: Place) -> TCPStore:
    """Come to a place where the first rank is."""
    where = f"{place.address}:{place.port}"
    try:
        store = TCPStore(place.address, place.port, is_master=False, timeout=PATIENCE)
    except DistNetworkError:
        raise DivopdError(
            f"nobody answers at {where}, where the ranks of the learner meet; learner.address must be an address of "
            "the first machine that the others reach"
        ) from None
    if store.get("token").decode() != place.token:
        raise InputError(f"the ranks of another run meet at {where}; set another learner.port, or 0 for a free one")
    return store


def network_to(address: str) -> str | None:
    """The network interface by which this machine reaches an address, one of its own included; None if unknown."""
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return "lo" if own.startswith("127.") else None

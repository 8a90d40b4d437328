"""Ranks meet at one address, and only with those of their own run."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")

from divopd.errors import InputError  # noqa: E402
from divopd.learner.meeting import (  # noqa: E402
    Place,
    connect,
    find,
    network_to,
    read_place,
    serve,
    write_place,
)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody else listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="there is no /proc that tells who listens")
def test_the_first_rank_listens_on_its_address_only() -> None:
    """torch's own store would listen on all addresses of the machine."""
    store, place = serve("127.0.0.1", 0, ranks=2)
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    listening = [line[1] for line in lines if line[3] == "0A" and line[1].endswith(f":{place.port:04X}")]
    assert listening == [f"0100007F:{place.port:04X}"]
    assert connect(place).get("token").decode() == place.token
    del store


def test_a_place_is_told_through_a_file_of_the_owner(tmp_path: Path) -> None:
    """Whole or not at all; who waits for it may be called away meanwhile."""
    file = tmp_path / "ranks"
    assert read_place(file) is None
    store, place = serve("127.0.0.1", 0, ranks=2)
    asked: list[None] = []

    def check() -> None:
        asked.append(None)
        if len(asked) == 2:
            write_place(file, place)

    find(lambda: read_place(file), check)
    assert (len(asked), file.stat().st_mode & 0o777) == (2, 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["ranks"]
    with pytest.raises(KeyboardInterrupt):
        find(lambda: None, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    del store


def test_ranks_of_another_run_are_refused() -> None:
    """They found the port of a run that ended, where another one meets now."""
    store, place = serve("127.0.0.1", 0, ranks=2)
    with pytest.raises(InputError, match=f"the ranks of another run meet at 127.0.0.1:{place.port}; set another"):
        connect(Place(place.address, place.port, "of before"))
    del store


def test_a_place_that_cannot_be_had_is_told_in_a_line(taken: int) -> None:
    """A port that is taken, and an address of another machine."""
    with pytest.raises(InputError, match=rf"cannot meet at 127.0.0.1:{taken} \(Address already in use"):
        serve("127.0.0.1", taken, ranks=2)
    with pytest.raises(InputError, match=r"cannot meet at 192.0.2.1:0 \(Cannot assign.*one of the first machine's own"):
        serve("192.0.2.1", 0, ranks=2)


def test_the_network_of_loopback_is_loopback() -> None:
    """So gloo opens no port to others; an address that leads nowhere has none."""
    assert network_to("127.0.0.1") in ("lo", None)

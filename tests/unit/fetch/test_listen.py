"""The port of the progress, which is open to everybody: what clients that mean ill, or nothing, cost."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict

import pytest

from dflash_controller.fetch.listen import MOST_CONNECTIONS, Listener
from dflash_controller.model.fetch_progress import FetchProgress
from dflash_controller.observe.fetch_progress import read_progress

HALF = FetchProgress("Fetching acme/x", 5, 10, 1.0, 5.0)
NEVER_S = 3600.0


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(clients: ExitStack, listener: Listener, sends: bytes = b"") -> socket.socket:
    client = clients.enter_context(socket.create_connection(("127.0.0.1", listener.port), 60))
    client.sendall(sends)
    return client


def ends(client: socket.socket) -> bool:
    """Whether the other side has ended the connection, without an answer."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_idle_clients_take_no_thread_and_keep_nobody_from_an_answer(clients: ExitStack) -> None:
    before = threading.active_count()
    with Listener(0, lambda: asdict(HALF), patience_s=NEVER_S) as listener:
        idle = [connect(clients, listener) for _ in range(300)]
        assert asyncio.run(read_progress("127.0.0.1", listener.port)) == HALF
        assert threading.active_count() == before + 1
        assert len(idle) > MOST_CONNECTIONS
        assert all(ends(client) for client in idle[:-MOST_CONNECTIONS]), "the oldest ones give way"
    assert threading.active_count() == before


@pytest.mark.parametrize("sends", [b"", b"GET /progress HTTP/1.1\r\n"])
def test_a_client_that_does_not_finish_its_request_is_sent_away(clients: ExitStack, sends: bytes) -> None:
    with Listener(0, lambda: asdict(HALF), patience_s=0.1) as listener:
        assert ends(connect(clients, listener, sends))


def test_a_byte_now_and_then_prolongs_nothing(clients: ExitStack) -> None:
    with Listener(0, lambda: asdict(HALF), patience_s=0.5) as listener:
        client = connect(clients, listener, b"GET ")
        client.settimeout(0.05)
        for _ in range(1000):
            try:
                client.sendall(b"x")
                assert client.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            return
        raise AssertionError("the connection is still open")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /progress HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /progress HTTP/1.1\r\n\r\n", b"404"),
        (b"\r\n\r\n", b"404"),
    ],
)
def test_only_the_progress_is_answered(clients: ExitStack, request_: bytes, status: bytes) -> None:
    with Listener(0, lambda: asdict(HALF)) as listener:
        answer = connect(clients, listener, request_).makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert (b'"done": 5' in answer) == (status == b"200")


def test_a_head_without_end_is_not_kept(clients: ExitStack) -> None:
    with Listener(0, lambda: asdict(HALF), patience_s=NEVER_S) as listener:
        client = connect(clients, listener)
        with pytest.raises(ConnectionError):
            client.sendall(bytes(100_000_000))

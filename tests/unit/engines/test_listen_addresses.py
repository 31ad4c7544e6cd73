"""Engines listen on IPv4-only, IPv6-only and dual-stack pod networks."""

import asyncio
import dataclasses
import errno
import socket

import pytest

from dflash_controller.engines import ENGINES, listen
from dflash_controller.engines.flags import index, parsed
from dflash_controller.engines.protocol import LaunchRequest
from testbed.contract.examples import request
from tests.support.releases import contract_releases, default_release

LOOPBACK = {listen.V4: (socket.AF_INET, "127.0.0.1"), listen.V6: (socket.AF_INET6, "::1")}


def ask(engine: str, *extra: str, families: tuple[str, ...] = (), release: str = "", nodes: int = 1) -> LaunchRequest:
    base = request(engine, release or default_release(engine), "Qwen/Qwen3.5-35B-A3B", nodes)
    return dataclasses.replace(base, extra_args=extra, pod_ip_families=families, nodes=nodes)


def rendered(asked: LaunchRequest, engine: str) -> str:
    return index(parsed(ENGINES[engine].launch(asked).args))["--host"]


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("families", [(), ("IPv4",), ("IPv6",), ("IPv4", "IPv6"), ("IPv6", "IPv4")])
def test_the_server_listens_on_every_family_of_the_pod_network(engine: str, families: tuple[str, ...]) -> None:
    serves = listen.ASYNCIO if engine == "sglang" else listen.ONE_SOCKET
    for release in contract_releases(engine):
        assert serves[rendered(ask(engine, families=families, release=release), engine)] >= (frozenset(families) or {"IPv4", "IPv6"})


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_no_ipv6_socket_where_pods_have_ipv4_alone(engine: str) -> None:
    """A node whose kernel has no IPv6 refuses the socket of ``::``."""
    assert rendered(ask(engine, families=("IPv4",)), engine) == "0.0.0.0"


def test_every_rank_listens_alike() -> None:
    launched = ENGINES["sglang"].launch(ask("sglang", nodes=2))
    assert index(parsed(launched.args))["--host"] == index(parsed(launched.worker_args))["--host"]


def test_several_tokenizer_processes_share_one_socket() -> None:
    assert listen.ONE_SOCKET[rendered(ask("sglang", "--tokenizer-worker-num=4"), "sglang")] == {"IPv4", "IPv6"}


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("address", ["::", "0.0.0.0"])
def test_a_user_s_address_is_taken_where_it_reaches_the_pods(engine: str, address: str) -> None:
    family = "IPv6" if address == "::" else "IPv4"
    for families in ((), (family,), (family, "IPv6")):
        assert rendered(ask(engine, f"--host={address}", families=families), engine) == address
        launched = ENGINES[engine].launch(ask(engine, f"--host={address}", families=families))
        assert sum(arg.startswith("--host") for arg in launched.args) == 1


@pytest.mark.parametrize(
    ("engine", "address", "families", "message"),
    [
        ("sglang", "::", ("IPv4", "IPv6"), "does not listen on IPv4"),
        ("sglang", "::", ("IPv4",), "does not listen on IPv4"),
        ("sglang", "0.0.0.0", ("IPv6",), "does not listen on IPv6"),
        ("vllm", "0.0.0.0", ("IPv6", "IPv4"), "does not listen on IPv6"),
        ("vllm", "127.0.0.1", (), "one address"),
        ("vllm", "::1", (), "one address"),
        ("sglang", "10.1.2.3", (), "one address"),
        ("sglang", "localhost", (), "one address"),
    ],
)
def test_an_address_that_does_not_reach_the_pods_is_refused(engine: str, address: str, families: tuple[str, ...], message: str) -> None:
    (problem,) = ENGINES[engine].problems(ask(engine, f"--host={address}", families=families))
    assert problem.field == "spec.engine.extraArgs[0]"
    assert f"--host={address}" in problem.message
    assert message in problem.message
    assert problem.remedy.startswith("Remove --host")


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize(
    "written", ["*", "=0", "[::]", "0", "0.0.0.0/0", "0.0.0", "::/0", "[::]:8000", "0.0.0.0:8000", ":::", " ", "http://0.0.0.0"]
)
def test_what_is_no_address_is_refused_with_the_addresses_that_are_allowed(engine: str, written: str) -> None:
    (problem,) = ENGINES[engine].problems(ask(engine, f"--host={written}"))
    assert problem.field == "spec.engine.extraArgs[0]"
    assert problem.message == f"--host={written} is neither an address nor a host name"
    assert problem.remedy.startswith("Remove --host: the engine then listens on every address of its pod.")
    assert "--host=0.0.0.0 (IPv4)" in problem.remedy
    assert f"--host=:: ({'IPv6' if engine == 'sglang' else 'IPv4 and IPv6'})" in problem.remedy


def test_the_remedy_names_addresses_that_reach_this_cluster_s_pods() -> None:
    (problem,) = ENGINES["sglang"].problems(ask("sglang", "--host=*", families=("IPv6",)))
    assert "--host=:: (IPv6)" in problem.remedy
    assert "0.0.0.0" not in problem.remedy


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("written", ["::0", "0:0:0:0:0:0:0:0", "0::"])
def test_every_spelling_of_the_unspecified_address_is_taken(engine: str, written: str) -> None:
    assert ENGINES[engine].problems(ask(engine, f"--host={written}", families=("IPv6",))) == []
    (problem,) = ENGINES["sglang"].problems(ask("sglang", f"--host={written}", families=("IPv4",)))
    assert "does not listen on IPv4" in problem.message


@pytest.mark.parametrize("written", ["pod-1.example", "10.0.0.7", "fe80::1", "::ffff:10.0.0.7", "LOCALHOST"])
def test_a_real_address_or_name_is_one_address(written: str) -> None:
    (problem,) = ENGINES["vllm"].problems(ask("vllm", f"--host={written}"))
    assert "is one address" in problem.message


def reached(port: int) -> set[str]:
    found = set()
    for family, (kind, address) in LOOPBACK.items():
        with socket.socket(kind) as client:
            if client.connect_ex((address, port)) == 0:
                found.add(family)
    return found


def free_port() -> int:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("address", sorted(listen.ASYNCIO))
async def test_asyncio_serves_the_families_of_the_table(address: str) -> None:
    port = free_port()
    server = await asyncio.start_server(lambda reader, writer: writer.close(), address, port)
    async with server:
        assert await asyncio.to_thread(reached, port) == listen.ASYNCIO[address]


@pytest.mark.parametrize("address", sorted(listen.ONE_SOCKET))
def test_one_socket_serves_the_families_of_the_table(address: str) -> None:
    """As vLLM's ``create_server_socket`` and uvicorn's ``bind_socket`` make it."""
    port = free_port()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        try:
            server.bind((address, port))
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                pytest.skip("this kernel has no IPv6")
            raise
        server.listen()
        assert reached(port) == listen.ONE_SOCKET[address]

"""What a hub, a mirror or a proxy between must not do to the storage or to the program, whatever it answers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.fetch import hub as hub_module
from dflash_controller.fetch import threads
from dflash_controller.fetch.failures import FetchError
from dflash_controller.fetch.hub import TRANSPORT_ERROR, Hub
from dflash_controller.fetch.selection import Wanted
from dflash_controller.fetch.threads import run_all
from dflash_controller.model.fetch_report import FetchReason
from tests.support.fetching import PATIENCE_S, run, start
from tests.support.hub_server import COMMIT, HubServer, content

MODEL = "acme/target"
WANTED = f"--model={MODEL}@{COMMIT}"
WEIGHTS = content(300_000, 1)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}
LOGIN = "<html>" + "log in " * 3000 + "</html>"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer({MODEL: dict(FILES)}) as server:
        yield server


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"blobId": "../../../../victim"},
        {"blobId": "{into}/../victim"},
        {"blobId": "../../../other--model/abc/model.safetensors"},
        {"blobId": "A" * 40},
        {"blobId": 7},
        {"size": "10"},
        {"size": -10},
        {"lfs": {"sha256": "../" * 21 + "x", "size": 10, "pointerSize": 134}},
    ],
    ids=str,
)
def test_a_size_or_hash_that_is_none_is_refused_and_names_no_file(wrong: dict[str, Any], hub: HubServer, into: Path) -> None:
    victim = into.parent / "victim"
    other = into / "models" / "other--model" / "abc" / "model.safetensors"
    other.parent.mkdir(parents=True)
    for path in (victim, other):
        path.write_text("mine")
    changed = {key: value.format(into=into) if isinstance(value, str) else value for key, value in wrong.items()}
    hub.relist = lambda siblings: siblings[0].update(changed)
    code, message, _ = run(into, WANTED, endpoint=hub.endpoint)
    assert (code, message["reason"]) == (15, "HashMismatch")
    assert "config.json" in message["message"]
    assert (victim.read_text(), other.read_text()) == ("mine", "mine")
    assert hub.requests == []


def test_the_page_of_a_proxy_in_place_of_weights_is_asked_for_a_few_times_and_named(hub: HubServer, into: Path) -> None:
    hub.page = LOGIN
    code, message, _ = run(into, WANTED, "--retry-seconds=2", endpoint=hub.endpoint)
    assert (code, message["reason"], message["bytes"]) == (16, "HubUnreachable", 0)
    assert f"{len(LOGIN)} bytes (text/html)" in message["message"]
    assert len(hub.requests) < 10


def test_a_short_answer_of_unknown_length_is_no_progress(hub: HubServer, into: Path) -> None:
    hub.page, hub.tells_length = LOGIN, False
    code, message, _ = run(into, WANTED, "--retry-seconds=2", "--ignore=config.json", endpoint=hub.endpoint)
    assert (code, message["reason"]) == (16, "HubUnreachable")
    assert f"ended after {len(LOGIN)} of {len(WEIGHTS)} bytes" in message["message"]
    assert len(hub.requests) < 10


def test_the_page_of_a_proxy_in_place_of_the_list_is_named(hub: HubServer, into: Path) -> None:
    hub.page, hub.lists_page = LOGIN, True
    code, message, _ = run(into, WANTED, "--retry-seconds=1", endpoint=hub.endpoint)
    assert (code, message["reason"]) == (16, "HubUnreachable")
    assert "something else than a list of files" in message["message"]


def test_what_follows_the_content_is_not_written(hub: HubServer, into: Path) -> None:
    hub.surplus, hub.tells_length = 50_000_000, False
    code, message, log = run(into, WANTED, endpoint=hub.endpoint)
    assert code == 0, log
    assert message["bytes"] == sum(map(len, FILES.values()))
    assert everything(into)[f"models/acme--target/{COMMIT}/model.safetensors"] == WEIGHTS


def test_a_connection_that_is_cut_again_and_again_is_continued_at_each_byte(hub: HubServer, into: Path) -> None:
    hub.cut_after = 100_000
    code, message, log = run(into, WANTED, "--parallel=1", endpoint=hub.endpoint)
    assert code == 0, log
    assert [request.begins for request in hub.requests if request.path == "model.safetensors"] == [0, 131072, 262144]
    assert message["bytes"] == sum(map(len, FILES.values())), "nothing twice"


def test_sigterm_ends_a_download_that_trickles(hub: HubServer, into: Path) -> None:
    some = threading.Event()
    hub.trickles, hub.on_bytes = True, some.set
    process = start(into, WANTED, endpoint=hub.endpoint)
    assert some.wait(PATIENCE_S)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, log


@pytest.mark.parametrize("name", [".dflash.json", ".dflash.json/x"])
def test_a_file_with_the_manifests_name_is_left_out(name: str, hub: HubServer, into: Path) -> None:
    hub.models[MODEL][name] = b'{"files": []}'
    for _ in range(3):
        code, _, log = run(into, WANTED, endpoint=hub.endpoint)
        assert code == 0, log
    assert name not in {request.path for request in hub.requests}
    assert b"model.safetensors" in everything(into)[f"models/acme--target/{COMMIT}/.dflash.json"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HF_ENDPOINT": "hub.example"}, "HF_ENDPOINT is 'hub.example', which is no URL"),
        ({"SSL_CERT_FILE": "/no/such/file"}, "SSL_CERT_FILE names /no/such/file, which is no file"),
    ],
)
def test_what_no_retry_can_help_is_told_at_once(environment: dict[str, str], said: str, hub: HubServer, into: Path) -> None:
    code, message, log = run(into, WANTED, **{"endpoint": hub.endpoint, **environment})
    assert (code, message["reason"]) == (16, "HubUnreachable")
    assert said in message["message"]
    assert "Retries" not in log


def test_what_is_there_is_there_whatever_the_environment(hub: HubServer, into: Path) -> None:
    assert run(into, WANTED, endpoint=hub.endpoint)[0] == 0
    assert run(into, WANTED, endpoint="hub.example")[0] == 0


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, 11, "127.0.0.1 refuses acme/target (403, without a token)"),
        (407, 1, "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"),
        (451, 1, "for legal reasons"),
        (418, 1, "look at the hub"),
    ],
)
def test_further_answers_have_a_remedy(status: int, code: int, said: str, hub: HubServer, into: Path) -> None:
    hub.failures = [status]
    found, message, _ = run(into, WANTED, endpoint=hub.endpoint)
    assert found == code
    assert said in message["message"]


def test_a_password_in_the_endpoint_is_in_no_message(hub: HubServer, into: Path) -> None:
    hub.failures = [403]
    _, message, log = run(into, WANTED, endpoint=hub.endpoint.replace("//", "//user:s3cret@"))
    assert "acme/target" in message["message"]
    assert "s3cret" not in message["message"] + log


def test_a_certificate_that_cannot_be_verified_names_the_variable() -> None:
    with pytest.raises(FetchError, match="SSL_CERT_FILE") as raised, Hub()._errors(Wanted(MODEL, COMMIT)):
        raise _transport_error("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate")
    assert raised.value.reason is FetchReason.HUB_UNREACHABLE
    with pytest.raises(hub_module.TransientError), Hub()._errors(Wanted(MODEL, COMMIT)):
        raise _transport_error("connection refused")


def _transport_error(text: str) -> Exception:
    return TRANSPORT_ERROR(text)


@pytest.mark.parametrize("place", ["final", "partial"])
@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_in_the_way_in_the_storage_is_named(place: str, kind: str, hub: HubServer, into: Path) -> None:
    blocked = into / "models" / "acme--target" / {"final": COMMIT, "partial": f".{COMMIT}.partial"}[place]
    blocked.parent.mkdir(parents=True)
    if kind == "file":
        blocked.write_text("mine")
    else:
        blocked.symlink_to("nowhere")
    code, message, log = run(into, WANTED, endpoint=hub.endpoint)
    assert (code, message["reason"]) == (19, "StorageNotWritable"), log
    assert str(blocked) in message["message"]
    assert "Remove it" in message["message"]


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon"])
def test_durations_are_finite(text: str, hub: HubServer, into: Path) -> None:
    assert run(into, WANTED, f"--retry-seconds={text}", endpoint=hub.endpoint)[0] == 2


class TestRunAll:
    """The threads of a fetch."""

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads, "LAST_S", 0.1)

    @staticmethod
    def hang(until: threading.Event) -> Callable[[], int]:
        def action() -> int:
            until.wait()
            return 0

        return action

    def test_the_results_are_in_order(self) -> None:
        assert run_all([lambda: 1, lambda: 2, lambda: 3], 2, threading.Event()) == [1, 2, 3]

    def test_a_signal_does_not_wait_for_a_silent_hub(self) -> None:
        stopped, answer = threading.Event(), threading.Event()
        stopped.set()
        with pytest.raises(FetchError) as raised:
            run_all([self.hang(answer)], 1, stopped)
        assert raised.value.reason is FetchReason.INTERRUPTED
        answer.set()

    def test_an_error_is_raised_while_others_hang(self) -> None:
        stopped, answer = threading.Event(), threading.Event()

        def fails() -> int:
            raise FetchError(FetchReason.NO_SPACE, "full")

        with pytest.raises(FetchError, match="full"):
            run_all([self.hang(answer), fails, self.hang(answer)], 2, stopped)
        assert stopped.is_set()
        answer.set()

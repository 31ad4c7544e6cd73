"""What the client makes of a hub's answers: facts, a no with its reason, or a failure. It never raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from dflash_controller.model.hub import ModelFacts, ModelQuestion
from dflash_controller.model.measurement import Absent, Error
from dflash_controller.observe.hub.client import MOST_FILES, HubClient, HubSettings
from testbed.hub_server import HubServer, commit_of

MODEL, COMMIT = "z-lab/Qwen3.5-9B-DFlash", commit_of("first")
CONFIG = {"architectures": ["DFlashDraftModel"], "block_size": 16}
MAIN = ModelQuestion(MODEL, "main")


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as running:
        running.publish(MODEL, COMMIT, {"config.json": CONFIG, "model.safetensors": b"w" * 1000, "original/model.bin": b"w" * 70})
        yield running


@pytest.fixture
async def client(server: HubServer) -> AsyncIterator[HubClient]:
    made = HubClient(HubSettings(server.url, timeout_s=5.0))
    yield made
    await made.close()


async def test_a_branch_is_resolved_with_the_sizes_of_its_files_and_its_config(client: HubClient) -> None:
    found = await client.ask(MAIN)
    assert isinstance(found, ModelFacts)
    assert (found.commit, found.config) == (COMMIT, {**CONFIG, "dflash": True})
    assert found.files["model.safetensors"] == 1000
    assert found.weight_bytes == 1000


async def test_the_hub_of_the_tests_says_the_same_to_the_client_of_hugging_face(server: HubServer, client: HubClient) -> None:
    api = HfApi(endpoint=server.url)
    found, theirs = await client.ask(MAIN), await asyncio.to_thread(api.model_info, MODEL, revision="main", files_metadata=True)
    assert isinstance(found, ModelFacts)
    assert theirs.sha == found.commit
    assert {file.rfilename: file.size for file in theirs.siblings or ()} == found.files
    with pytest.raises(RevisionNotFoundError):
        await asyncio.to_thread(api.model_info, MODEL, revision="mian")
    with pytest.raises(RepositoryNotFoundError):
        await asyncio.to_thread(api.model_info, "z-lab/nothing")


@pytest.mark.parametrize("ref", ["v1.0", "refs/pr/7", "feature/new_drafter"])
async def test_every_kind_of_ref_is_asked_as_one_part_of_the_path(server: HubServer, client: HubClient, ref: str) -> None:
    other = server.publish(MODEL, commit_of(ref), {"config.json": CONFIG}, ref=ref)
    found = await client.ask(ModelQuestion(MODEL, ref))
    assert isinstance(found, ModelFacts)
    assert found.commit == other
    assert server.asked[f"/api/models/{MODEL}/revision/{ref.replace('/', '%2F')}"] == 1


async def test_config_json_is_read_at_the_commit_and_not_at_the_branch(server: HubServer, client: HubClient) -> None:
    await client.ask(MAIN)
    assert server.asked[f"/{MODEL}/resolve/{COMMIT}/config.json"] == 1
    assert f"/{MODEL}/resolve/main/config.json" not in server.asked


async def test_a_gated_repository_has_a_commit_and_no_config(server: HubServer, client: HubClient) -> None:
    server.repositories[MODEL].gated = True
    found = await client.ask(MAIN)
    assert isinstance(found, ModelFacts)
    assert (found.commit, found.config) == (COMMIT, None)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"[" * 100_000, b"\xff"])
async def test_a_config_that_is_no_json_object_is_none(server: HubServer, client: HubClient, content: bytes) -> None:
    server.publish(MODEL, COMMIT, {"config.json": content})
    found = await client.ask(MAIN)
    assert isinstance(found, ModelFacts)
    assert found.config is None


async def test_of_a_repository_with_very_many_files_no_sizes_are_kept(server: HubServer, client: HubClient) -> None:
    server.publish(MODEL, COMMIT, {f"{number}.safetensors": b"w" for number in range(MOST_FILES + 1)})
    found = await client.ask(MAIN)
    assert isinstance(found, ModelFacts)
    assert (found.commit, found.weight_bytes) == (COMMIT, None)


async def test_a_repository_without_config_json_has_none(server: HubServer, client: HubClient) -> None:
    server.publish(MODEL, COMMIT, {"model.safetensors": b"w"})
    found = await client.ask(MAIN)
    assert isinstance(found, ModelFacts)
    assert found.config is None


async def test_a_revision_that_does_not_exist_is_a_no(server: HubServer, client: HubClient) -> None:
    assert await client.ask(ModelQuestion(MODEL, "mian")) == Absent(f"{server.url} has no revision mian of {MODEL}")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_repository_that_needs_a_token_is_a_no(server: HubServer, client: HubClient, status: int) -> None:
    server.status = status
    found = await client.ask(MAIN)
    assert isinstance(found, Absent)
    assert f"(HTTP {status}): it is gated or private, or does not exist, and the operator reads no Secrets" in found.reason


async def test_a_mirror_that_tells_errors_by_status_alone(server: HubServer, client: HubClient) -> None:
    server.status = 404
    assert await client.ask(MAIN) == Absent(f"{server.url} has no {MODEL} at revision main (HTTP 404)")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_hub_that_fails_is_no_answer(server: HubServer, client: HubClient, status: int) -> None:
    server.status = status
    assert await client.ask(MAIN) == Error(f"{server.url} answers HTTP {status}")


async def test_a_hub_that_is_gone_is_no_answer_and_says_the_same_each_time(server: HubServer, client: HubClient) -> None:
    server.stop()
    assert await client.ask(MAIN) == Error(f"{server.url} cannot be reached")
    assert await client.ask(MAIN) == Error(f"{server.url} cannot be reached")


async def test_a_hub_that_is_silent_is_given_up(server: HubServer) -> None:
    server.silent = True
    client = HubClient(HubSettings(server.url, timeout_s=0.2))
    assert await client.ask(MAIN) == Error(f"{server.url} gives no answer within 0.2 s")
    await client.close()


async def test_the_time_in_line_for_a_connection_counts(server: HubServer) -> None:
    client = HubClient(HubSettings(server.url, timeout_s=0.2, connections=1))
    async with client._free:
        assert isinstance(await client.ask(MAIN), Error)
    assert not server.asked
    await client.close()


async def test_something_that_is_no_hub_is_no_answer() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>Sign in to the network</html>")

    async def no_commit(request: web.Request) -> web.Response:
        return web.json_response({"sha": "main", "siblings": "none"})

    for handler in (page, no_commit):
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        async with TestServer(app) as other:
            client = HubClient(HubSettings(str(other.make_url(""))))
            assert isinstance(await client.ask(MAIN), Error)
            await client.close()


async def test_a_renamed_repository_is_followed(server: HubServer) -> None:
    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"{server.url}{request.rel_url}")

    app = web.Application()
    app.router.add_get("/{path:.*}", moved)
    async with TestServer(app) as old:
        client = HubClient(HubSettings(str(old.make_url("")).rstrip("/")))
        found = await client.ask(MAIN)
        await client.close()
    assert isinstance(found, ModelFacts)
    assert found.config == {**CONFIG, "dflash": True}


async def test_a_proxy_of_the_environment_is_used(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # A forward proxy gets the whole URL; our server answers by its path.
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    client = HubClient(HubSettings("http://hub.example.invalid"))
    found = await client.ask(MAIN)
    await client.close()
    assert isinstance(found, ModelFacts)
    assert found.commit == COMMIT

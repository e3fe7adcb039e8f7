"""Authorization of requests to the kubelet API of a virtual node."""

import ssl

import aiohttp
import pytest

from tapestry.kube.errors import Forbidden

from .world import NODE, RIGHT, World


@pytest.mark.parametrize(("who", "code"), [("", 401), ("made up", 401), ("guest's", 403), ("operator's", 200)])
async def test_token_is_authorized_by_its_user(world: World, who: str, code: int) -> None:
    assert (await world.ask(who=who))[0] == code


@pytest.mark.parametrize(("user", "code"), [("operator", 200), ("guest", 403)])
async def test_client_certificate_authenticates_but_does_not_authorize(world: World, user: str, code: int) -> None:
    assert await world.ask_with(world.authority.client_certificate(user, ["a-group"])) == code
    assert world.reviews == [{"user": user, "groups": ["a-group"], "resourceAttributes": RIGHT}]


async def test_certificate_of_unknown_ca_ends_the_connection(world: World) -> None:
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await world.ask_with(world.other_authority.client_certificate("operator", []))
    assert world.reviews == []


async def test_request_needs_permission_on_the_node(
    world: World,
) -> None:
    await world.ask()
    await world.ask("/containerLogs/default/none/c")
    assert [each["resourceAttributes"]["name"] for each in world.reviews] == [NODE, ""]
    assert (await world.ask("/containerLogs/default/none/c", who="guest's"))[0] == 403


async def test_other_paths_are_not_found(world: World) -> None:
    for path in ("/run/default/web/c?cmd=id", "/pods", "/metrics", "/", "/exec/default/web", "/exec/default/web/c/d/e"):
        assert (await world.ask(path, method="POST"))[0] == 404
        assert world.reviews[-1]["resourceAttributes"] == {**RIGHT, "verb": "create", "name": ""}
        assert (await world.ask(path, who="guest's"))[0] == 403
        assert (await world.ask(path, who=""))[0] == 401


async def test_log_is_only_read(world: World) -> None:
    assert (await world.ask(method="POST"))[0] == 405


async def test_unreachable_virtual_cluster_denies_all_requests(world: World) -> None:
    world.refusal = Forbidden(403, "Forbidden", "the syncer may not ask")
    assert await world.ask() == (503, "the API server cannot authenticate the request now")

"""Admission by the program that the server is part of."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import AdmissionPlugin, WriteRequest, admission_forbidden
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object, with_value

from ..conftest import ServerClient
from ..handlers.test_server import DEFINITIONS, MAPS, MERGE, WIDGETS, new_definition

APPLY = "application/apply-patch+yaml"
STORAGE = "widgets.example.com"


class Quota:
    """A plugin that allows two widgets of a color, sets their owner, and protects blue ones."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def admit(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        color = new["spec"].get("color", "red")
        if old is None and not self.is_free(color):
            raise admission_forbidden(request, f"there are two widgets of color {color} already")
        if old is None:
            request.claim = lambda: self.is_free(color)
            new = with_value(new, ("metadata", "annotations", "owner"), request.user.name)
        elif new["metadata"]["annotations"]["owner"] != old["metadata"]["annotations"]["owner"]:
            raise admission_forbidden(request, "the owner may not change")
        return with_value(new, ("spec", "color"), color)

    def is_free(self, color: str) -> bool:
        heads = (msgspec.json.decode(each.raw) for each in self.store.heads(STORAGE))
        return sum(each["spec"]["color"] == color for each in heads) < 2

    async def admit_delete(self, request: WriteRequest, current: Object) -> None:
        if current["spec"]["color"] == "blue":
            raise admission_forbidden(request, "blue is precious")


def quota_plugin(store: Store) -> AdmissionPlugin:
    quota = Quota(store)
    return AdmissionPlugin(frozenset({STORAGE}), quota.admit, quota.admit_delete)


@pytest.fixture(params=["memory", "file"])
async def call(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerClient]:
    config = ApiServerConfig(
        backend=request.param, secure_address="", pod_accounts=False, file_rootpath=str(tmp_path / "data")
    )
    async with run_apiserver(config, admission=quota_plugin) as running:
        client = ServerClient(running.server, running.account_tokens)
        await client.made(DEFINITIONS, new_definition())
        yield client


def new_widget(name: str, **spec: object) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


async def test_plugin_sets_defaults_and_owner(call: ServerClient) -> None:
    widget = await call.made(WIDGETS, new_widget("w"))
    assert (widget["spec"]["color"], widget["metadata"]["annotations"]["owner"]) == ("red", "admin")


async def test_concurrent_creates_never_pass_quota(call: ServerClient) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(call("POST", WIDGETS, new_widget(f"w{number}", color="blue"))) for number in range(20)
        ]
    statuses = [each.result()[0] for each in tasks]
    assert (statuses.count(201), statuses.count(403)) == (2, 18)


@pytest.mark.parametrize("kind", [MERGE, APPLY])
async def test_plugin_admits_updates_by_any_patch(call: ServerClient, kind: str) -> None:
    await call.made(WIDGETS, new_widget("w"))
    stolen = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"annotations": {"owner": "eve"}}}
    options = {"fieldManager": "test", "force": "true"} if kind == APPLY else {}
    status, result = await call("PATCH", f"{WIDGETS}/w", stolen, kind=kind, **options)
    assert (status, "the owner may not change" in result["message"]) == (403, True)


async def test_result_of_plugin_is_validated(call: ServerClient) -> None:
    status, result = await call("POST", WIDGETS, new_widget("w", color=3))
    assert (status, "spec.color" in result["message"]) == (422, True)


async def test_plugin_rejects_deletions(call: ServerClient) -> None:
    await call.made(WIDGETS, new_widget("w", color="blue"))
    for path in (f"{WIDGETS}/w", WIDGETS):
        status, result = await call("DELETE", path)
        assert (status, "blue is precious" in result["message"]) == (403, True)
    await call("POST", WIDGETS, new_widget("v"))
    assert (await call("DELETE", f"{WIDGETS}/v"))[0] == 200


async def test_dry_run_claims_nothing(call: ServerClient) -> None:
    for number in range(3):
        status, _ = await call("POST", WIDGETS, new_widget(f"w{number}"), dryRun="All")
        assert status == 201
    await call.made(WIDGETS, new_widget("w"))


async def test_other_resources_are_not_admitted(call: ServerClient) -> None:
    assert await call.made(MAPS, {"metadata": {"name": "m"}})
    assert (await call("DELETE", f"{MAPS}/m"))[0] == 200

"""Renewal of the token in a kubeconfig, on virtual time."""

import asyncio
import base64
import json
from typing import Any

import yaml

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.config import Metrics, Probes
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CSI_NODES, EVENTS, LEASES, NAMESPACES, NODES, PODS, SECRETS, SERVICE_ACCOUNTS
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection
from tapestry.syncer.credentials import parse_kubeconfig, parse_token, with_token

SERVED = [
    *(CLUSTER_BINDINGS, POLICIES, NODES, PODS, NAMESPACES, SECRETS),
    *(CSI_NODES, EVENTS, LEASES, SERVICE_ACCOUNTS),
]


def new_token(**claims: object) -> str:
    payload = {
        "exp": 1_706_745_600,
        "iat": 1_704_067_200,
        "kubernetes.io": {"namespace": "leased", "serviceaccount": {"name": "east", "uid": "1"}},
        **claims,
    }
    middle = base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")
    return f"e30.{middle}.c2ln"


def new_kubeconfig(token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://east.example:6443"}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def test_token_names_account_and_renewal_time() -> None:
    token = parse_token(new_kubeconfig(new_token()))
    assert token is not None
    assert token.kubernetes.serviceaccount.name == "east"
    assert token.ends.isoformat() == "2024-02-01T00:00:00+00:00"
    assert token.renewal.isoformat() == "2024-01-25T19:12:00+00:00"


def test_other_credentials_are_not_renewed() -> None:
    for kubeconfig in (
        {},
        new_kubeconfig("opaque"),
        new_kubeconfig("a.b.c"),
        new_kubeconfig(new_token(exp="never")),
        {"users": [{"name": "u", "user": {"client-certificate-data": "x"}}]},
        {"users": [*new_kubeconfig(new_token())["users"], *new_kubeconfig(new_token())["users"]]},
    ):
        assert parse_token(kubeconfig) is None


def test_new_token_changes_nothing_else() -> None:
    before = new_kubeconfig(new_token())
    after = with_token(before, "new")
    assert after["users"][0] == {"name": "u", "user": {"token": "new"}}
    assert {**after, "users": 0} == {**before, "users": 0}


def test_unreadable_kubeconfig_is_empty() -> None:
    data = base64.b64encode(yaml.safe_dump(new_kubeconfig("t")).encode()).decode()
    assert parse_kubeconfig({"data": {"kubeconfig": data}}) == new_kubeconfig("t")
    for broken in ("???", base64.b64encode(b"[").decode(), base64.b64encode(b"- 1").decode()):
        assert parse_kubeconfig({"data": {"kubeconfig": broken}}) == {}


OF_AN_HOUR = new_token(exp=1_704_067_200 + 3600)


async def populate(virtual: Client, physical: Client) -> None:
    for client in (virtual, physical):
        await client.create(NAMESPACES, object_named("kube-system"))
    await physical.create(SERVICE_ACCOUNTS, object_named("east", "leased"))
    data = {"kubeconfig": base64.b64encode(yaml.safe_dump(new_kubeconfig(OF_AN_HOUR)).encode()).decode()}
    await virtual.create(SECRETS, {**object_named("east", "tapestry-system"), "data": data})
    spec = {
        "clusterID": "east",
        "secretRef": {"name": "east", "namespace": "tapestry-system"},
        "mountNamespace": "leased",
    }
    await virtual.create(CLUSTER_BINDINGS, {**object_named("east"), "spec": spec})


async def secret_after(minutes: float) -> Object:
    """Return the kubeconfig Secret after a syncer has run for that many minutes."""
    clock = running_clock()
    virtual_api, physical_api = (InProcessApi(SERVED, now=clock.now) for _ in range(2))
    virtual = Client(virtual_api.connect())
    await populate(virtual, Client(physical_api.connect()))
    quiet = {"metrics": Metrics(address=""), "probes": Probes(address="")}
    config = SyncerConfig(
        binding="east", silence_seconds=86_400, leader_election=SyncerLeaderElection(enabled=False), **quiet
    )
    manager = Manager(config, virtual_api.connect, identity="one", now=clock.now, monotonic=clock.monotonic)
    await build_syncer(config, manager, connect=lambda _: physical_api.connect(), monotonic=clock.monotonic)
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        await asyncio.sleep(minutes * 60)
        found = await virtual.get(SECRETS, "east", "tapestry-system")
        manager.stop()
    return found


def test_token_is_renewed_after_80_percent() -> None:
    assert parse_kubeconfig(run(secret_after(47))) == new_kubeconfig(OF_AN_HOUR)
    renewed = parse_kubeconfig(run(secret_after(49)))
    assert renewed["users"][0]["user"]["token"] != OF_AN_HOUR
    assert renewed["clusters"] == new_kubeconfig("")["clusters"]

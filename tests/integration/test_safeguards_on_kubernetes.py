"""Limits of the syncer account that `tapestry join` creates in a physical cluster."""

import asyncio
import base64
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import virtual_cluster_of
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.logs import pod_log
from tapestry.kube.errors import ApiError, Forbidden, Invalid
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    NAMESPACES,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
)

from .bound_clusters import client_of, install_kinds
from .forked import completed
from .planes import Plane, Start, starts_own

DRIVER = "disk.example"
DENIED = (Forbidden, Invalid)


@pytest.fixture(scope="module")
def guarded_plane(start: Start) -> Iterator[Plane]:
    """A physical cluster with all safeguards."""
    with start("guarded") as plane:
        yield plane


@pytest.fixture(scope="module")
def second_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Another virtual cluster."""
    with starts_own(tmp_path_factory)("second") as plane:
        asyncio.run(install_kinds(plane))
        yield plane


@dataclass(frozen=True)
class Joined:
    """A virtual cluster that has joined the physical one, and its account there."""

    name: str
    virtual: Client
    owner: Client
    """The administrator of the physical cluster."""
    account: Client
    mount: str
    mark: str

    def volume(self, handle: str = "vol-1", *, labels: Object | None = None, **spec: Any) -> Object:
        """A volume with a generated name, as the syncer creates it."""
        ours = {keys.VIRTUAL_CLUSTER: self.mark, keys.CLUSTER_BINDING_UID: "uid"}
        given = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": self.mount, "name": "data"},
            "csi": {"driver": DRIVER, "volumeHandle": handle},
            **spec,
        }
        metadata = {"name": f"data-{'a' * 10}{secrets.token_hex(3).translate(HEX)}", "labels": labels or ours}
        return {"metadata": metadata, "spec": {key: value for key, value in given.items() if value is not None}}

    def claim(self, volume: str | None, *, labels: Object | None = None) -> Object:
        ours = {keys.VIRTUAL_CLUSTER: self.mark, keys.CLUSTER_BINDING_UID: "uid"}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        metadata = {"name": f"c-{secrets.token_hex(4)}", "namespace": self.mount, "labels": labels or ours}
        return {
            "metadata": metadata,
            "spec": {**spec, "storageClassName": "", **({"volumeName": volume} if volume else {})},
        }


HEX = str.maketrans("0189", "ghij")
"""From hexadecimal digits to those of base 32."""


@asynccontextmanager
async def joined(virtual: Plane, physical: Plane, folder: Path, *options: str, **spec: Any) -> AsyncIterator[Joined]:
    """Join with `tapestry join`, with `spec` in the binding, and leave at the end.

    No controller empties namespaces here, so each test uses a separate mount namespace.
    """
    name = f"s{secrets.token_hex(4)}"
    options = options or own_namespace()
    async with client_of(virtual) as above, client_of(physical) as owner:
        await tapestry(virtual, "join", name, "--cluster-kubeconfig", physical.kubeconfig, *options)
        if spec:
            await above.patch(CLUSTER_BINDINGS, object_named(name), {"spec": spec})
            await tapestry(virtual, "join", name, "--cluster-kubeconfig", physical.kubeconfig, *options)
        binding = await above.get(CLUSTER_BINDINGS, name)
        secret = await above.get(SECRETS, name, keys.SYSTEM_NAMESPACE)
        file = folder / f"{name}.kubeconfig"
        file.write_bytes(base64.b64decode(secret["data"]["kubeconfig"]))
        account = Client(HttpTransport(load_access([file], environ=os.environ)))
        mount = binding["spec"]["mountNamespace"]
        try:
            yield Joined(name, above, owner, account, mount, virtual_cluster_of(await owner.get(NAMESPACES, mount)))
        finally:
            await account.close()
            for pod in await owner.list(PODS, mount):
                await owner.delete(PODS, pod, grace_seconds=0)
            await tapestry(virtual, "unjoin", name, "--cluster-kubeconfig", physical.kubeconfig)


def own_namespace() -> tuple[str, str]:
    return "--mount-namespace", f"m-{secrets.token_hex(4)}"


async def tapestry(virtual: Plane, *arguments: object) -> str:
    environ = {**os.environ, "KUBECONFIG": str(virtual.kubeconfig)}
    done = await asyncio.to_thread(completed, arguments, environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_pod(name: str, namespace: str, **spec: Any) -> Object:
    resources = {"requests": {"cpu": "100m"}}
    containers = [{"name": "c", "image": "busybox:1", "resources": resources}]
    return {**object_named(name, namespace), "spec": {"containers": containers, **spec}}


async def until_denied(attempt: Callable[[], Awaitable[Object]], part: str = "") -> None:
    """Repeat `attempt` until new policies are in effect and deny it, with a message that contains `part`."""
    async with asyncio.timeout(60):
        while True:
            try:
                await attempt()
            except DENIED as error:
                if part in error.message:
                    return


# -- two virtual clusters on one physical cluster


async def test_virtual_clusters_cannot_reach_each_other(
    virtual_plane: Plane, second_plane: Plane, guarded_plane: Plane, tmp_path: Path
) -> None:
    async with (
        joined(virtual_plane, guarded_plane, tmp_path, "--lease", "50%") as one,
        joined(second_plane, guarded_plane, tmp_path, "--lease", "50%") as other,
    ):
        assert (one.mount, other.mount) == ("tapestry-leased", f"tapestry-leased-{other.mark[:12]}")
        assert one.mark != other.mark
        for each in (one, other):
            await each.owner.create(SECRETS, {**object_named("password", each.mount), "stringData": {"k": "v"}})
            await each.owner.create(PODS, new_pod("work", each.mount))
            await each.account.get(SECRETS, "password", each.mount)  # it can read its own objects
        for each, victim in ((one, other), (other, one)):
            await check_out_of_reach(each.account, victim)


async def check_out_of_reach(account: Client, victim: Joined) -> None:
    mount = victim.mount
    (theirs,) = await victim.owner.list(SERVICE_ACCOUNTS, mount, labels=keys.VIRTUAL_CLUSTER)
    debugger = {"spec": {"ephemeralContainers": [{"name": "x", "image": "i"}]}}
    pod = object_named("work", mount)

    async def log() -> None:
        async with pod_log(account, "work", mount, {}) as chunks:
            [chunk async for chunk in chunks]

    attempts: dict[str, Callable[[], Awaitable[Any]]] = {
        "read a Secret": lambda: account.get(SECRETS, "password", mount),
        "list Secrets": lambda: account.list(SECRETS, mount),
        "list all Secrets": lambda: account.list(SECRETS),
        "change a Secret": lambda: account.patch(SECRETS, object_named("password", mount), {"data": {}}),
        "mint a token of its syncer": lambda: account.request_token(name_of(theirs), mount),
        "mint a token of its pods": lambda: account.request_token("default", mount),
        "read a pod": lambda: account.get(PODS, "work", mount),
        "read a log": log,
        "debug a pod": lambda: account.patch(PODS, pod, debugger, subresource="ephemeralcontainers"),
        "change a pod": lambda: account.patch(PODS, pod, {"metadata": {"labels": {"a": "b"}}}),
        "delete a pod": lambda: account.delete(PODS, pod),
        "create a pod": lambda: account.create(PODS, new_pod("mine", mount)),
        "mark the namespace": lambda: account.patch(
            NAMESPACES, object_named(mount), {"metadata": {"labels": {"a": "b"}}}
        ),
        "remove its network policy": lambda: account.list(NETWORK_POLICIES, mount),
    }
    reached = []
    for what, attempt in attempts.items():
        try:
            await attempt()
        except Forbidden:
            continue
        reached.append(what)
    assert reached == []


async def test_pod_security_and_quota_of_owner_are_enforced(
    virtual_plane: Plane, guarded_plane: Plane, tmp_path: Path
) -> None:
    options = (*own_namespace(), "--max-pods", "1", "--max-cpu", "1")
    async with joined(virtual_plane, guarded_plane, tmp_path, *options, podSecurity="privileged") as one:
        (quota,) = await one.owner.list(RESOURCE_QUOTAS, one.mount)
        assert quota["spec"]["hard"] == {"pods": "1", "requests.cpu": "1"}
        counted = {"hard": quota["spec"]["hard"], "used": {"pods": "0", "requests.cpu": "0"}}  # as a controller does
        await one.owner.patch(RESOURCE_QUOTAS, quota, {"status": counted}, subresource="status")
        async with asyncio.timeout(60):
            while not await fits(one):
                pass
        with pytest.raises(Forbidden, match="exceeded quota"):
            await one.account.create(PODS, new_pod("two", one.mount))
        root = {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}
        with pytest.raises(Forbidden, match='violates PodSecurity "baseline'):
            await one.account.create(PODS, new_pod("root", one.mount, **root))
        claim = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
        claim["spec"]["volumeName"] = "the-owners"  # a controller would create this claim
        for source in ({"ephemeral": {"volumeClaimTemplate": claim}}, {"nfs": {"server": "192.0.2.1", "path": "/"}}):
            reaching = new_pod("reaching", one.mount, volumes=[{"name": "v", **source}])
            await until_denied(partial(one.account.create, PODS, reaching), "ValidatingAdmissionPolicy")
        (policy,) = await one.owner.list(NETWORK_POLICIES, one.mount)
        assert value_at(policy, "spec", "policyTypes") == ["Ingress", "Egress"]
        await check_it_cannot_weaken_them(one)


async def fits(one: Joined) -> bool:
    try:
        await one.account.create(PODS, new_pod("one", one.mount))
    except Forbidden:  # the API server has not yet seen the status of the quota
        return False
    return True


async def check_it_cannot_weaken_them(one: Joined) -> None:
    loose = {"metadata": {"labels": {keys.POD_SECURITY_ENFORCE: "privileged"}}}
    for attempt in (
        lambda: one.account.patch(NAMESPACES, object_named(one.mount), loose),
        lambda: one.account.list(RESOURCE_QUOTAS, one.mount),
        lambda: one.account.list(NETWORK_POLICIES, one.mount),
        lambda: one.account.list(ADMISSION_POLICIES),
    ):
        with pytest.raises(Forbidden):
            await attempt()


# -- volumes


@pytest.fixture
async def with_volumes(virtual_plane: Plane, guarded_plane: Plane, tmp_path: Path) -> AsyncIterator[Joined]:
    """A joined cluster that allows volumes of one driver.  Its policies are in effect."""
    allowed = {"drivers": [DRIVER], "volumeHandles": ["shared/*"]}
    async with joined(virtual_plane, guarded_plane, tmp_path, allowedVolumes=allowed) as one:
        foreign = one.volume("the-owners", claimRef={"namespace": "shop", "name": "db"}, labels={"team": "shop"})
        foreign["metadata"]["name"] = f"the-owners-{one.name}"
        await one.owner.create(PERSISTENT_VOLUMES, foreign)
        shared = one.volume("shared/data", claimRef={"namespace": "shop", "name": "files"}, labels={"team": "shop"})
        shared["metadata"]["name"] = f"shared-{one.name}"
        await one.owner.create(PERSISTENT_VOLUMES, shared)
        other = {"driver": "other.example", "volumeHandle": "x"}
        await until_denied(lambda: one.account.create(PERSISTENT_VOLUMES, one.volume(csi=other)))
        await until_denied(lambda: one.account.create(PERSISTENT_VOLUMES, one.volume("the-owners")))
        await until_denied(lambda: one.account.create(PERSISTENT_VOLUME_CLAIMS, one.claim(None)))
        await until_denied(lambda: one.account.create(PERSISTENT_VOLUME_CLAIMS, one.claim(name_of(foreign))))
        yield one
        for volume in await one.owner.list(PERSISTENT_VOLUMES):
            await one.owner.delete(PERSISTENT_VOLUMES, volume)
        for claim in await one.owner.list(PERSISTENT_VOLUME_CLAIMS, one.mount):
            await one.owner.delete(PERSISTENT_VOLUME_CLAIMS, claim)
            done = {"metadata": {"finalizers": None}}
            await one.owner.patch(PERSISTENT_VOLUME_CLAIMS, object_named(name_of(claim), one.mount), done)


async def test_account_can_use_only_its_own_volumes(
    with_volumes: Joined, virtual_plane: Plane, guarded_plane: Plane
) -> None:
    one, kubeconfig = with_volumes, guarded_plane.kubeconfig
    again = (await tapestry(virtual_plane, "join", one.name, "--cluster-kubeconfig", kubeconfig)).splitlines()
    assert {line.split()[0] for line in again[:-1]} == {"unchanged", "granted", "warning"}  # of loopback
    create = one.account.create
    # Operations of a syncer.
    own = await create(PERSISTENT_VOLUMES, one.volume("vol-7"))
    claim = await create(PERSISTENT_VOLUME_CLAIMS, one.claim(name_of(own)))
    await one.account.patch(PERSISTENT_VOLUMES, own, {"spec": {"capacity": {"storage": "2Gi"}}})
    await one.account.delete(PERSISTENT_VOLUME_CLAIMS, claim)
    await one.account.delete(PERSISTENT_VOLUMES, object_named(name_of(own)))
    await create(PERSISTENT_VOLUMES, one.volume("shared/data"))  # the class exists and the binding names it

    elsewhere = {"name": "s", "namespace": "kube-system"}
    csi = {"driver": DRIVER, "volumeHandle": "vol-1"}
    refused: dict[str, Object] = {
        "a path of the node": one.volume(csi=None, hostPath={"path": "/"}),
        "an NFS share": one.volume(csi=None, nfs={"server": "192.0.2.1", "path": "/"}),
        "another driver": one.volume(csi={"driver": "other.example", "volumeHandle": "v"}),
        "no labels": one.volume(labels={"a": "b"}),
        "another virtual cluster": one.volume(labels={keys.VIRTUAL_CLUSTER: "x", keys.CLUSTER_BINDING_UID: "uid"}),
        "no binding": one.volume(labels={keys.VIRTUAL_CLUSTER: one.mark}),
        "no claim": one.volume(claimRef=None),
        "a claim elsewhere": one.volume(claimRef={"namespace": "shop", "name": "db"}),
        "a handle of the owner": one.volume("the-owners"),
        **{field: one.volume(csi={**csi, field: elsewhere}) for field in SECRET_FIELDS},
    }
    accepted = [what for what, volume in refused.items() if not await is_denied(create, PERSISTENT_VOLUMES, volume)]
    theirs = object_named(f"the-owners-{one.name}")
    ours = {"metadata": {"labels": {keys.VIRTUAL_CLUSTER: one.mark, keys.CLUSTER_BINDING_UID: "uid"}}}
    claims = {
        "a claim for anything": one.claim(None),
        "a claim for the owner's volume": one.claim(name_of(theirs)),
        "a claim for a volume to come": one.claim("data-2"),
        "a claim without labels": one.claim(name_of(own), labels={"a": "b"}),
    }
    accepted += [what for what, each in claims.items() if not await is_denied(create, PERSISTENT_VOLUME_CLAIMS, each)]
    if not await is_denied(one.account.delete, PERSISTENT_VOLUMES, theirs):
        accepted.append("the owner's volume deleted")
    if not await is_denied(one.account.patch, PERSISTENT_VOLUMES, theirs, ours):
        accepted.append("the owner's volume taken over")
    assert accepted == []


SECRET_FIELDS = (
    *("controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef"),
    *("controllerExpandSecretRef", "nodeExpandSecretRef"),
)


async def is_denied(act: Callable[..., Awaitable[Any]], *arguments: Any) -> bool:
    """Report whether an admission policy of the owner denies the request."""
    try:
        await act(*arguments)
    except ApiError as error:
        if "ValidatingAdmissionPolicy" in error.message:
            return True
        raise
    return False

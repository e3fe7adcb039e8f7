"""The worker chart on real servers: what it creates, and joining a cluster in which its owner has installed it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from smells import command_blocks
from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.discovery import served_resources
from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, with_type_meta
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from tapestry.manager.joining import account_name

from .bound_clusters import client_of
from .forked import completed
from .helm import REUSE, ROOT, Objects, by_key, rendered, run
from .planes import OWN, Plane, Start, kubeconfig_with


@pytest.fixture
def worker(start: Start, helm: Path, virtual_plane: Plane, tmp_path: Path) -> Iterator[Plane]:
    """A physical cluster in which its owner has installed the worker chart."""
    values = tmp_path / "values.yaml"
    with start("worker") as plane:
        values.write_text(tapestry(virtual_plane, "join", "charted", "--print-worker-values"))
        install = "install", "worker", "charts/tapestry-worker", "-f", str(values), "--set=quota.pods=5"
        run(helm, *install, kubeconfig=plane.kubeconfig)
        yield plane


@pytest.mark.long  # it fails if other tests use the same clusters
def test_chart_creates_what_join_creates(virtual_plane: Plane, start: Start, helm: Path, tmp_path: Path) -> None:
    values, volumes = tmp_path / "values.yaml", {"drivers": ["disk.example"], "volumeHandles": ["shared/*"]}
    values.write_text(tapestry(virtual_plane, "join", "alike", "--print-worker-values"))
    identity = yaml.safe_load(values.read_text())
    chart = {**identity, "quota": {"pods": 5}, "allowedVolumes": volumes, "joiner": False}
    values.write_text(yaml.safe_dump(chart))
    found = rendered(helm, "tapestry-worker", f"--values={values}")
    with start("joined") as plane:
        options = ("--cluster-kubeconfig", plane.kubeconfig, "--mount-namespace", "tapestry-leased", "--max-pods", "5")
        asyncio.run(allow_volumes(virtual_plane, volumes))
        tapestry(virtual_plane, "join", "alike", *options)
        joined = by_key(asyncio.run(objects_of_join(plane, virtual_plane, chart["virtualCluster"])))
        tapestry(virtual_plane, "unjoin", "alike", "--force")
    assert granted(joined) == granted(found)
    assert not_roles(joined) == not_roles(found)
    for key in not_roles(found):
        assert is_contained(found[key], joined[key]), (found[key], joined[key])


async def allow_volumes(plane: Plane, volumes: Object) -> None:
    """Create the binding before it joins, because join takes its allowed volumes from there."""
    reference = {"name": "alike", "namespace": keys.SYSTEM_NAMESPACE}
    spec = {"clusterID": "alike", "secretRef": reference, "allowedVolumes": volumes}
    async with client_of(plane) as client:
        binding = with_type_meta(CLUSTER_BINDINGS, {"metadata": {"name": "alike"}, "spec": spec})
        await client.create(CLUSTER_BINDINGS, binding)


async def objects_of_join(plane: Plane, virtual: Plane, virtual_cluster: str) -> list[Object]:
    """Return the objects in a cluster that has joined as `alike`, with the names that the chart gives them."""
    kinds = (
        *(NAMESPACES, SERVICE_ACCOUNTS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES, ROLE_BINDINGS, PRIORITY_CLASSES),
        *(POLICIES, RESOURCE_QUOTAS, NETWORK_POLICIES, ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS),
    )
    async with client_of(virtual) as client:
        uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    async with client_of(plane) as client:
        labels = f"{keys.MANAGED_BY}={keys.TAPESTRY}"
        found = [with_type_meta(kind, each) for kind in kinds for each in await client.list(kind, labels=labels)]
    own_suffix = account_name(uid, "alike").rpartition("-")[2]
    renamed: list[Object] = json.loads(json.dumps(found).replace(own_suffix, virtual_cluster[:12]))
    return renamed


def not_roles(objects: Objects) -> set[tuple[str, str, str]]:
    return {key for key in objects if not key[0].startswith(("Role", "ClusterRole"))}


def granted(objects: Objects) -> set[tuple[str, ...]]:
    """Return each right of the account by namespace, group, resource, verb and name; the chart has more roles."""
    return {
        (namespace, group, resource, verb, name)
        for (kind, namespace, _), role in objects.items()
        if kind in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group, resource, verb, name in product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
        )
    }


def is_contained(wanted: Any, found: Any) -> bool:
    """Return whether a server's object has everything that is wanted; it also has defaults."""
    if isinstance(wanted, dict):
        return all(is_contained(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(wanted) == len(found) and all(map(is_contained, wanted, found))
    return bool(wanted == found)


def tapestry(plane: Plane, *arguments: object, check: bool = True) -> str:
    done = completed(arguments, {**os.environ, "KUBECONFIG": str(plane.kubeconfig)})
    assert (done.returncode == 0) == check, done.stderr
    return done.stdout if check else done.stderr


@pytest.mark.long  # it fails if other tests use the same clusters
def test_joiner_joins_without_writes_below(virtual_plane: Plane, worker: Plane, helm: Path, tmp_path: Path) -> None:
    before = asyncio.run(versions(worker))
    assert len({each.split()[0] for each in before}) > 10  # kinds
    joiner = asyncio.run(joiner_kubeconfig(worker, tmp_path / "joiner"))
    output = tapestry(virtual_plane, "join", "charted", "--cluster-kubeconfig", joiner, "--prepared")
    assert "permissions, checked as the syncer" in output
    assert asyncio.run(versions(worker)) == before
    assert asyncio.run(joined_cluster(virtual_plane)) == "tapestry-leased"
    again = tapestry(virtual_plane, "join", "charted", "--cluster-kubeconfig", joiner, "--prepared")
    assert "created" not in again
    elsewhere = ("--cluster-kubeconfig", joiner, "--prepared", "--mount-namespace", "kube-system")
    assert "its --mount-namespace" in tapestry(virtual_plane, "join", "charted", *elsewhere, check=False)
    run(
        helm,
        "upgrade",
        "worker",
        "charts/tapestry-worker",
        REUSE,
        "--set=reclaimNow=true",
        kubeconfig=worker.kubeconfig,
    )
    assert asyncio.run(reclaim_mark(worker)) == "now"
    assert "charted" in tapestry(virtual_plane, "uninstall-check", check=False)
    tapestry(virtual_plane, "unjoin", "charted", "--force")


async def joiner_kubeconfig(plane: Plane, file: Path) -> Path:
    """Write a kubeconfig of the chart's account for joining, and return the file."""
    async with client_of(plane) as client:
        (account,) = [each for each in await client.list(SERVICE_ACCOUNTS, "default") if "joiner" in name_of(each)]
        token = await client.request_token(name_of(account), "default", seconds=3600)
    return kubeconfig_with(plane, token["token"], file)


async def versions(plane: Plane) -> dict[str, str]:
    """Return the versions of all objects, except those that API servers themselves write again and again."""
    async with client_of(plane) as client:
        kinds = [kind for kind, verbs in (await served_resources(client)).items() if "list" in verbs]
        return {
            f"{kind.name} {namespace_of(each)}/{name_of(each)}": each["metadata"].get("resourceVersion", "")
            for kind in kinds
            if kind not in (LEASES, EVENTS) and kind.plural != "componentstatuses"
            for each in await client.list(kind)
        }


async def joined_cluster(plane: Plane) -> str:
    async with client_of(plane) as client:
        binding = await client.get(CLUSTER_BINDINGS, "charted")
        assert await client.get(SECRETS, "charted", keys.SYSTEM_NAMESPACE)
        mount: str = binding["spec"]["mountNamespace"]
        return mount


async def reclaim_mark(plane: Plane) -> str | None:
    async with client_of(plane) as client:
        namespace = await client.get(NAMESPACES, "tapestry-leased")
        mark: str | None = namespace["metadata"]["annotations"].get(keys.RECLAIM)
        return mark


@pytest.mark.parametrize("flavour", [OWN], indirect=True)
def test_commands_of_the_guide(start: Start, kube_assets: Path, helm: Path, tmp_path: Path) -> None:
    """The operator's commands run in one cluster, and those for the chart tapestry-worker in the other."""
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    path = f"{kube_assets}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    scripts = [block.script for block in command_blocks((ROOT / "docs" / "guides" / "installing.md").read_text())]
    assert len(scripts) >= 6
    with start("guide", controllers=True) as virtual, start("guided", controllers=True) as physical:
        for script in scripts:
            if "--prepared" in script:
                asyncio.run(joiner_kubeconfig(physical, tmp_path / "east.yaml"))
            plane = physical if "charts/tapestry-worker" in script else virtual
            environ = {**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubeconfig)}
            command = ["bash", "-euc", script]
            done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (script, done.stderr)


def test_unprepared_cluster_is_named(virtual_plane: Plane, start: Start) -> None:
    with start("unprepared") as plane:
        message = tapestry(
            virtual_plane, "join", "other", "--cluster-kubeconfig", plane.kubeconfig, "--prepared", check=False
        )
    assert "is not prepared for this binding" in message
    assert "--print-worker-values" in message

"""Contents of the diagnostic bundle, missing items and redaction."""

import base64
import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.inspect import bundle
from tapestry.inspect.bundle import CollectedData, Collector, MissingItem, bundle_files, tar_archive
from tapestry.inspect.queries import Queries
from tapestry.kube.objects import object_named, with_type_meta
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CONFIGMAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
)
from tapestry.manager.installation import installation_objects

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SECRET = "correct-horse-battery-staple"
KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://east.example"}}],
    "users": [{"name": "u", "user": {"token": SECRET}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "c",
}
ABOVE = (
    *(CLUSTER_BINDINGS, POLICIES, NODES, PODS, EVENTS, DEPLOYMENTS, LEASES, CONFIGMAPS, SECRETS, NAMESPACES),
    CLUSTER_ROLE_BINDINGS,
)


def manifest_of(files: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files["manifest.json"])
    return found


def new_object(name: str, created: str = "2026-03-01T00:00:00Z", **fields: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "creationTimestamp": created}, **fields}


def collect_from_world(
    tmp_path: Path, *, with_physical: bool = True, namespace: str = keys.SYSTEM_NAMESPACE
) -> CollectedData:
    """Collect from a virtual cluster with one binding, with a secret planted wherever possible.

    The manager is in `namespace`.
    """
    collected, steps = CollectedData(), []

    async def main() -> None:
        clock = running_clock()
        physical_api = InProcessApi([NAMESPACES, NODES, PODS, EVENTS, POLICIES], now=clock.now)
        virtual, physical = Client(InProcessApi(ABOVE, now=clock.now).connect()), Client(physical_api.connect())
        await virtual.create(NAMESPACES, object_named("kube-system"))
        identity = (await physical.create(NAMESPACES, object_named("kube-system")))["metadata"]["uid"]
        await physical.create(NODES, object_named("n1"))
        if with_physical:
            data = {"kubeconfig": base64.b64encode(json.dumps(KUBECONFIG).encode()).decode()}
            await virtual.create(SECRETS, {**object_named("east", namespace), "data": data})
        reference = {"name": "east", "namespace": namespace}
        spec = {"clusterID": "e1", "secretRef": reference, "mountNamespace": "leased"}
        binding_object = await virtual.create(
            CLUSTER_BINDINGS, with_type_meta(CLUSTER_BINDINGS, {**object_named("east"), "spec": spec})
        )
        await virtual.patch(CLUSTER_BINDINGS, binding_object, {"status": {"identity": identity}}, subresource="status")
        container = {"name": "c", "image": "i", "env": [{"name": "A", "value": SECRET}], "args": [SECRET]}
        for client, place in ((virtual, "default"), (physical, "leased")):
            await client.create(PODS, {**object_named("web", place), "spec": {"containers": [container]}})
            about = {"involvedObject": {"kind": "Pod", "name": "web", "namespace": place}, "reason": "R"}
            await client.create(EVENTS, {**object_named("e", place), **about, "message": f"it said {SECRET}"})
        await virtual.create(CONFIGMAPS, {**object_named("c", namespace), "data": {"k": SECRET}})
        for obj in installation_objects(namespace=namespace):
            if obj["kind"] == CLUSTER_ROLE_BINDINGS.kind:
                await virtual.create(CLUSTER_ROLE_BINDINGS, obj)
        collector = Collector(collected, steps.append)
        await collector.collect_clusters(Queries(virtual, lambda _: physical_api.connect(), clock.now()))

    run(main())
    assert "virtual pods" in steps
    folder = tmp_path / "virtual"
    folder.mkdir()
    (folder / "log").write_text(f'{{"message": "it said {SECRET}"}}\n')
    (folder / "etcd.log").write_text("started\n")
    (folder / "audit.log").write_text("who asked for what\n")
    (folder / "kubeconfig").write_text("users: [{user: {token: of-the-administrator}}]")
    Collector(collected, steps.append).collect_world(tmp_path)
    return collected


def test_safety_rule_7_bundle_contains_no_planted_secret(tmp_path: Path) -> None:
    collected = collect_from_world(tmp_path)
    collected.texts["doctor.txt"] = f"kubeconfig: {SECRET}, of-the-administrator"
    collected.missing.append(MissingItem(what=f"logs of {SECRET}", why=f"refused: {SECRET}"))
    assert SECRET in str(collected.objects) + str(collected.texts)
    files = bundle_files(collected, {"tapestry": "1"}, NOW)
    everything = b"\n".join(files.values()).decode() + "\n".join(files)
    assert SECRET not in everything
    assert base64.b64encode(SECRET.encode()).decode().rstrip("=") not in everything
    assert "of-the-administrator" not in everything
    assert "it said [redacted]" in everything


def test_bundle_contains_both_clusters(tmp_path: Path) -> None:
    files = bundle_files(collect_from_world(tmp_path), {"tapestry": "1"}, NOW)
    assert {
        "virtual/clusterbindings.yaml",
        "virtual/pods.yaml",
        "virtual/secrets.yaml",
        "physical/east/nodes.yaml",
        "physical/east/pods.yaml",
        "world/virtual/log.log",
        "world/virtual/etcd.log",
    } <= files.keys()
    assert not [name for name in files if "audit" in name]
    (pod,) = yaml.safe_load_all(files["physical/east/pods.yaml"])
    assert pod["metadata"]["name"] == "web"
    assert manifest_of(files)["files"].keys() == files.keys() - {"manifest.json"}
    assert manifest_of(files)["versions"] == {"tapestry": "1"}


def test_bundle_contains_namespace_of_the_manager(tmp_path: Path) -> None:
    collected = collect_from_world(tmp_path, namespace="grid")
    assert [each["metadata"]["name"] for each in collected.objects["virtual/configmaps.yaml"]] == ["c"]
    assert [each["metadata"]["name"] for each in collected.objects["virtual/secrets.yaml"]] == ["east"]


def test_unreadable_items_are_in_manifest(tmp_path: Path) -> None:
    files = bundle_files(collect_from_world(tmp_path, with_physical=False), {}, NOW)
    (missing,) = [each for each in manifest_of(files)["missing"] if "physical cluster" in each["what"]]
    assert missing["what"] == "physical cluster of east"
    assert 'secrets "east" not found' in missing["why"]
    assert "virtual/pods.yaml" in files


def test_newest_objects_remain_over_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_OBJECTS", 2)
    days = [new_object(f"of-day-{day}", f"2026-03-0{day}T00:00:00Z") for day in (1, 3, 2)]
    files = bundle_files(CollectedData(objects={"pods.yaml": days}), {}, NOW)
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(files["pods.yaml"])]
    assert names == ["of-day-3", "of-day-2"]
    assert manifest_of(files)["missing"] == [{"what": "pods.yaml", "why": "has the newest 2 of 3 objects"}]


def test_files_over_size_limit_are_omitted_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_BUNDLE_BYTES", 1000)
    files = bundle_files(CollectedData(texts={"large.log": "x" * 1001, "small.log": "y" * 10}), {}, NOW)
    assert files.keys() == {"manifest.json", "small.log"}
    (missing,) = manifest_of(files)["missing"]
    assert missing["what"] == "large.log"


def test_archive_is_one_private_folder() -> None:
    packed = tar_archive({"manifest.json": b"{}", "logs/a.log": b"a"}, "bundle", NOW)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {each.name: each.mode for each in archive} == {"bundle/manifest.json": 0o600, "bundle/logs/a.log": 0o600}
        content = archive.extractfile("bundle/logs/a.log")
        assert content is not None
        assert content.read() == b"a"

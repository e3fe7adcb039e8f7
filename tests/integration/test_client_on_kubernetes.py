"""Every verb of the client on a real kube-apiserver."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.credentials import Credentials, StaticAuthorization
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.options import PatchType, Propagation
from tapestry.client.tls import TlsContextSource
from tapestry.kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, uid_of, value_at, version_of, with_value
from tapestry.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    PODS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)
from tapestry.local.kubernetes import KUBERNETES_VERSION
from tapestry.process.audit import AuditLog

BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")


def new_pod(name: str, namespace: str, **spec: Any) -> Object:
    containers = [{"name": "main", "image": "pause"}]
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def new_config(name: str, namespace: str, **data: str) -> Object:
    return {**object_named(name, namespace), "data": data}


@asynccontextmanager
async def new_client_with(access: Access) -> AsyncIterator[Client]:
    client = Client(HttpTransport(access))
    yield client
    await client.close()


# -- one object


async def test_object_is_created_read_and_replaced(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, new_config("c", namespace, colour="blue"))
    assert made == await client.get(CONFIGMAPS, "c", namespace)
    assert (made["kind"], made["apiVersion"]) == ("ConfigMap", "v1")
    with pytest.raises(AlreadyExists):
        await client.create(CONFIGMAPS, new_config("c", namespace))
    red = await client.replace(CONFIGMAPS, {**made, "data": {"colour": "red"}})
    with pytest.raises(Conflict):
        await client.replace(CONFIGMAPS, {**made, "data": {"colour": "green"}})
    assert await client.get(CONFIGMAPS, "c", namespace) == red
    unconditional = await client.replace(CONFIGMAPS, new_config("c", namespace, colour="grey"))
    assert unconditional["data"] == {"colour": "grey"}


async def test_missing_object_raises_not_found_with_its_name(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=f"GET /api/v1/namespaces/{namespace}/pods/ghost: 404 NotFound: pods"):
        await client.get(PODS, "ghost", namespace)
    with pytest.raises(NotFound):
        await client.delete(PODS, object_named("ghost", namespace))


async def test_invalid_object_is_refused_with_causes(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, {**object_named("p", namespace), "spec": {"containers": [{"name": "Main"}]}})
    fields = {cause["field"] for cause in caught.value.details["causes"]}
    assert "spec.containers[0].name" in fields


async def test_generate_name_yields_a_name(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, {"metadata": {"generateName": "c-", "namespace": namespace}})
    assert name_of(made).startswith("c-")
    assert len(name_of(made)) > 2


async def test_a_dry_run_changes_nothing(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, new_config("c", namespace, colour="blue"))
    await client.create(CONFIGMAPS, new_config("never", namespace), dry_run=True)
    red = {"data": {"colour": "red"}}
    assert (await client.replace(CONFIGMAPS, {**made, **red}, dry_run=True))["data"] == red["data"]
    assert (await client.patch(CONFIGMAPS, made, red, dry_run=True))["data"] == red["data"]
    assert (await client.apply(CONFIGMAPS, {**object_named("new", namespace), **red}, dry_run=True))["data"] == red[
        "data"
    ]
    await client.delete(CONFIGMAPS, made, dry_run=True)
    assert await client.list(CONFIGMAPS, namespace) == [made]


# -- patches


async def test_merge_strategic_and_json_patches_are_applied(client: Client, namespace: str) -> None:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "one", "image": "a"}, {"name": "two", "image": "b"}]},
    }
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    web = await client.create(DEPLOYMENTS, {**object_named("web", namespace), "spec": spec})

    def images(obj: Object) -> dict[str, str]:
        return {each["name"]: each["image"] for each in value_at(obj, "spec", "template", "spec", "containers")}

    change = {"spec": {"template": {"spec": {"containers": [{"name": "two", "image": "c"}]}}}}
    strategic = await client.patch(DEPLOYMENTS, web, change, type=PatchType.STRATEGIC)
    assert images(strategic) == {"one": "a", "two": "c"}  # by name
    merged = await client.patch(DEPLOYMENTS, strategic, change, type=PatchType.MERGE)
    assert images(merged) == {"two": "c"}  # whole
    path = "/spec/template/spec/containers/0/image"
    patch = [{"op": "test", "path": path, "value": "c"}, {"op": "replace", "path": path, "value": "d"}]
    patched = await client.patch(DEPLOYMENTS, merged, patch, type=PatchType.JSON)
    assert images(patched) == {"two": "d"}
    assert len({version_of(each) for each in (web, strategic, merged, patched)}) == 4


@pytest.mark.parametrize(
    ("type", "patch"),
    [
        (PatchType.MERGE, {"data": {"colour": "red"}}),
        (PatchType.STRATEGIC, {"data": {"colour": "red"}}),
        (PatchType.JSON, [{"op": "replace", "path": "/data/colour", "value": "red"}]),
    ],
)
async def test_safety_rule_4_patch_for_another_version_conflicts(
    client: Client, namespace: str, type: PatchType, patch: Any
) -> None:
    stale = await client.create(CONFIGMAPS, new_config("c", namespace, colour="blue"))
    current = await client.patch(CONFIGMAPS, stale, {"data": {"size": "small"}})
    with pytest.raises(Conflict):
        await client.patch(CONFIGMAPS, stale, patch, type=type)
    assert await client.get(CONFIGMAPS, "c", namespace) == current
    by_name = await client.patch(CONFIGMAPS, object_named("c", namespace), patch, type=type)
    assert by_name["data"] == {"colour": "red", "size": "small"}


async def test_field_managers_conflict_until_one_forces(client: Client, namespace: str) -> None:
    await client.apply(CONFIGMAPS, new_config("c", namespace, colour="blue", size="small"), manager="one")
    with pytest.raises(Conflict) as caught:
        await client.apply(CONFIGMAPS, new_config("c", namespace, colour="red"), manager="two")
    assert [cause["field"] for cause in caught.value.details["causes"]] == [".data.colour"]
    forced = await client.apply(CONFIGMAPS, new_config("c", namespace, colour="red"), manager="two", force=True)
    assert forced["data"] == {"colour": "red", "size": "small"}
    # A field that no manager applies any more is removed.
    left = await client.apply(CONFIGMAPS, object_named("c", namespace), manager="one")
    assert left["data"] == {"colour": "red"}


# -- status


async def test_status_is_written_through_its_subresource(client: Client, namespace: str) -> None:
    made = await client.create(PODS, new_pod("p", namespace))
    ignored = await client.patch(PODS, made, {"status": {"phase": "Running"}})
    assert ignored["status"]["phase"] == "Pending"
    written = await client.patch(PODS, ignored, {"status": {"phase": "Running"}}, subresource="status")
    assert written["status"]["phase"] == "Running"
    failed = with_value(written, ("status", "phase"), "Failed")
    replaced = await client.replace(PODS, failed, subresource="status")
    assert replaced["status"]["phase"] == "Failed"
    assert (await client.get(PODS, "p", namespace, subresource="status"))["status"] == replaced["status"]


async def test_converge_writes_differences_once(client: Client, namespace: str) -> None:
    config = {**object_named("c", namespace), "data": {"colour": "blue", "size": None}}
    made = await client.converge(CONFIGMAPS, None, config)
    assert made["data"] == {"colour": "blue"}
    assert await client.converge(CONFIGMAPS, made, config) is made
    pod = await client.create(PODS, new_pod("p", namespace))
    labels = {"app": None, "new": "yes"}
    wanted = {
        **with_value(object_named("p", namespace), ("metadata", "labels"), labels),
        "status": {"phase": "Running"},
    }
    found = await client.converge(PODS, pod, wanted)
    assert found["metadata"]["labels"] == {"new": "yes"}
    assert found["status"]["phase"] == "Running"
    assert await client.converge(PODS, found, wanted) is found


# -- lists


async def test_list_pages_share_one_resource_version(client: Client, namespace: str) -> None:
    for number in range(5):
        await client.create(CONFIGMAPS, new_config(f"c{number}", namespace))
    names, versions = [], set()
    async for part in client.pages(CONFIGMAPS, namespace, page_size=2):
        names.append([name_of(item) for item in part.items or ()])
        versions.add(part.metadata.resource_version)
        await client.delete_collection(CONFIGMAPS, namespace, fields="metadata.name=c4")
    assert names == [["c0", "c1"], ["c2", "c3"], ["c4"]]
    assert len(versions) == 1
    items = await client.list(CONFIGMAPS, namespace, page_size=3)
    assert [name_of(item) for item in items] == ["c0", "c1", "c2", "c3"]
    assert {(item["apiVersion"], item["kind"]) for item in items} == {("v1", "ConfigMap")}
    everywhere = await client.list(CONFIGMAPS)
    assert [item for item in everywhere if item["metadata"]["namespace"] == namespace] == items


async def test_selectors_filter_lists(client: Client, namespace: str) -> None:
    for name in ("one", "two"):
        await client.create(PODS, new_pod(name, namespace, nodeName=f"node-{name}"))

    async def chosen(**selectors: str) -> list[str]:
        return [name_of(pod) for pod in await client.list(PODS, namespace, **selectors)]

    assert await chosen() == ["one", "two"]
    assert await chosen(labels="app in (one, three)") == ["one"]
    assert await chosen(labels="app!=one") == ["two"]
    assert await chosen(fields="spec.nodeName=node-two") == ["two"]
    assert await chosen(labels="app=one", fields="spec.nodeName=node-two") == []
    with pytest.raises(BadRequest):
        await chosen(labels="app in one")


# -- deletion


async def test_safety_rule_4_deletion_spares_a_recreated_object(client: Client, namespace: str) -> None:
    first = await client.create(CONFIGMAPS, new_config("c", namespace))
    await client.delete(CONFIGMAPS, first)
    second = await client.create(CONFIGMAPS, new_config("c", namespace))
    third = await client.patch(CONFIGMAPS, second, {"data": {"a": "b"}})
    for stale in (first, second, with_value(third, ("metadata", "uid"), uid_of(first))):
        with pytest.raises(Conflict):
            await client.delete(CONFIGMAPS, stale)
    assert (await client.delete(CONFIGMAPS, third))["status"] == "Success"
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "c", namespace)


async def test_bound_pod_gets_the_requested_grace_period(client: Client, namespace: str) -> None:
    pod = await client.create(PODS, new_pod("p", namespace, nodeName="n1", terminationGracePeriodSeconds=60))
    going = await client.delete(PODS, pod, grace_seconds=20)
    assert is_deleting(going)
    assert going["metadata"]["deletionGracePeriodSeconds"] == 20
    assert is_deleting(await client.get(PODS, "p", namespace))
    await client.delete(PODS, going, grace_seconds=0)
    assert await client.list(PODS, namespace) == []


@pytest.mark.parametrize(
    ("propagation", "finalizers"),
    [
        (Propagation.BACKGROUND, None),
        (Propagation.FOREGROUND, ["foregroundDeletion"]),
        (Propagation.ORPHAN, ["orphan"]),
    ],
)
async def test_propagation_sets_the_garbage_collector_finalizer(
    client: Client, namespace: str, propagation: Propagation, finalizers: list[str] | None
) -> None:
    made = await client.create(CONFIGMAPS, new_config("c", namespace))
    going = await client.delete(CONFIGMAPS, made, propagation=propagation)
    assert value_at(going, "metadata", "finalizers") == finalizers


async def test_delete_collection_deletes_only_selected_objects(client: Client, namespace: str) -> None:
    for name in ("one", "two", "three"):
        await client.create(PODS, new_pod(name, namespace))
    await client.delete_collection(PODS, namespace, labels="app in (one, two)", fields="metadata.name!=two")
    assert [name_of(pod) for pod in await client.list(PODS, namespace)] == ["three", "two"]
    await client.delete_collection(PODS, namespace)
    assert await client.list(PODS, namespace) == []


async def test_eviction_respects_the_disruption_budget(client: Client, namespace: str) -> None:
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    await client.create(BUDGETS, {**object_named("b", namespace), "spec": budget})
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    guarded, free = [
        await client.converge(PODS, None, {**new_pod(name, namespace, nodeName="n1"), "status": running})
        for name in ("guarded", "free")
    ]
    with pytest.raises(TooManyRequests) as caught:
        await client.evict(guarded)
    assert caught.value.retry_after == 10
    with pytest.raises(Conflict):
        await client.evict(with_value(free, ("metadata", "uid"), uid_of(guarded)))
    await client.evict(free, grace_seconds=0)
    assert [name_of(pod) for pod in await client.list(PODS, namespace)] == ["guarded"]


# -- authorization


async def test_service_account_token_authenticates(client: Client, kubeconfig: Path, namespace: str) -> None:
    await client.create(SERVICE_ACCOUNTS, object_named("robot", namespace))
    pod = await client.create(PODS, new_pod("p", namespace, serviceAccountName="robot"))
    status = await client.request_token("robot", namespace, seconds=600, bound_to=pod)
    review = await client.review(TOKEN_REVIEWS, {"token": status["token"]})
    user = f"system:serviceaccount:{namespace}:robot"
    assert review["status"]["user"]["username"] == user
    assert review["status"]["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [uid_of(pod)]
    admin = load_access([kubeconfig], environ=os.environ)
    credentials = Credentials(StaticAuthorization(f"Bearer {status['token']}"), TlsContextSource(admin.verification))
    async with new_client_with(replace(admin, credentials=credentials)) as robot:
        with pytest.raises(Forbidden, match=user):
            await robot.list(PODS, namespace)
    other = await client.request_token("robot", namespace, audiences=["elsewhere"])
    assert not (await client.review(TOKEN_REVIEWS, {"token": other["token"]}))["status"].get("authenticated")


async def test_access_reviews_work_for_self_and_others(client: Client, namespace: str) -> None:
    async def may(resource: Resource, attributes: Object, **who: Any) -> bool:
        review = await client.review(resource, {"resourceAttributes": attributes, **who})
        return bool(review["status"]["allowed"])

    evict = {"verb": "create", "resource": "pods", "subresource": "eviction", "namespace": namespace}
    assert await may(SELF_SUBJECT_ACCESS_REVIEWS, evict)
    assert not await may(SUBJECT_ACCESS_REVIEWS, evict, user="eve", groups=["staff"])
    assert await may(SUBJECT_ACCESS_REVIEWS, evict, user="eve", groups=["system:masters"])


async def test_impersonation_acts_as_the_other_user(kubeconfig: Path, namespace: str) -> None:
    groups = (("Impersonate-User", "eve"), ("Impersonate-Group", "staff"), ("Impersonate-Group", "system:masters"))
    access = load_access([kubeconfig], environ=os.environ)
    async with new_client_with(replace(access, impersonation=groups)) as client:
        assert await client.list(PODS, namespace) == []
    async with new_client_with(replace(access, impersonation=groups[:2])) as client:
        with pytest.raises(Forbidden, match='"eve" cannot list'):
            await client.list(PODS, namespace)


async def test_unknown_token_is_unauthorized(kubeconfig: Path, namespace: str) -> None:
    access = load_access([kubeconfig], environ=os.environ)
    credentials = Credentials(StaticAuthorization("Bearer stranger"), TlsContextSource(access.verification))
    async with new_client_with(replace(access, credentials=credentials)) as client:
        with pytest.raises(Unauthorized) as caught:
            await client.list(PODS, namespace)
    assert "stranger" not in str(caught.value)


# -- version and audit


async def test_server_reports_its_version(client: Client) -> None:
    assert (await client.server_version())["gitVersion"] in (
        f"v{KUBERNETES_VERSION}",
        f"v{KUBERNETES_VERSION}+tapestry",
    )


async def test_audit_entry_has_code_and_request_id(kubeconfig: Path, namespace: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    transport = HttpTransport(load_access([kubeconfig], environ=os.environ))
    with AuditLog(str(path)) as audit:
        client = Client(transport, audit=audit)
        await client.create(CONFIGMAPS, new_config("c", namespace))
        with pytest.raises(AlreadyExists):
            await client.create(CONFIGMAPS, new_config("c", namespace))
        await client.close()
    made, refused = map(json.loads, path.read_text().splitlines())
    assert (made["code"], refused["code"]) == (201, 409)
    assert made["requestId"]


Verb = Callable[[Client, Object], Any]


@pytest.mark.parametrize(
    "verb",
    [
        lambda client, obj: client.patch(CONFIGMAPS, obj, {"data": {"late": "yes"}}),
        lambda client, obj: client.replace(CONFIGMAPS, {**obj, "data": {"late": "yes"}}),
        lambda client, obj: client.apply(
            CONFIGMAPS,
            {"metadata": {key: obj["metadata"][key] for key in ("name", "namespace", "resourceVersion")}, "data": {}},
            force=True,
        ),
        lambda client, obj: client.delete(CONFIGMAPS, obj),
        lambda client, obj: client.create(
            CONFIGMAPS, new_config(name_of(obj), obj["metadata"]["namespace"], late="yes")
        ),
    ],
    ids=["patch", "replace", "apply", "delete", "create"],
)
async def test_safety_rule_4_late_write_of_a_leader_is_refused(
    client: Client, kubeconfig: Path, namespace: str, verb: Verb
) -> None:
    seen = await client.create(CONFIGMAPS, new_config("c", namespace, colour="blue"))
    current = await client.patch(CONFIGMAPS, seen, {"data": {"colour": "red"}})
    transport = HttpTransport(load_access([kubeconfig], environ=os.environ))
    leader = Client(transport, fence=lambda: None)
    with pytest.raises(Conflict):
        await verb(leader, seen)
    await leader.close()
    assert await client.get(CONFIGMAPS, "c", namespace) == current

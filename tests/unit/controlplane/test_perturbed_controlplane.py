"""The controllers, disturbed at every call they make: they must come to the same end each time."""

from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb
from tapestry.controlplane import crd_finalizer, garbage_collector, service_accounts
from tapestry.controlplane.metadata_informers import MetadataInformers
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, SERVICE_ACCOUNTS

from .objects import WIDGETS, a_map, a_namespace, a_widget, the_definition

AN_HOUR = 3600.0


async def wait_for_end(client: Client, name: str) -> None:
    await wait_for(client, CONFIGMAPS, name, "default", until=lambda obj: obj is None, timeout=AN_HOUR)


def collecting(manager: Manager) -> None:
    garbage_collector.install(manager, MetadataInformers(manager))


def is_unowned(obj: Object | None) -> bool:
    return obj is not None and not obj["metadata"].get("ownerReferences")


async def a_family_in_the_background(client: Client) -> None:
    owner = await client.create(CONFIGMAPS, a_map("owner"))
    other = await client.create(CONFIGMAPS, a_map("other"))
    child = await client.create(CONFIGMAPS, a_map("child", owner))
    await client.create(CONFIGMAPS, a_map("grandchild", child))
    await client.create(CONFIGMAPS, a_map("shared", owner, other))
    await client.delete(CONFIGMAPS, owner)
    await wait_for_end(client, "grandchild")
    await wait_for(
        client,
        CONFIGMAPS,
        "shared",
        "default",
        until=lambda obj: obj is not None and len(obj["metadata"]["ownerReferences"]) == 1,
        timeout=AN_HOUR,
    )


async def a_family_in_the_foreground(client: Client) -> None:
    owner = await client.create(CONFIGMAPS, a_map("owner", finalizers=[garbage_collector.FOREGROUND_FINALIZER]))
    child = await client.create(CONFIGMAPS, a_map("child", owner))
    await client.create(CONFIGMAPS, a_map("grandchild", child))
    await client.delete(CONFIGMAPS, owner)
    for name in ("owner", "child", "grandchild"):
        await wait_for_end(client, name)


async def orphans(client: Client) -> None:
    owner = await client.create(CONFIGMAPS, a_map("owner", finalizers=[garbage_collector.ORPHAN_FINALIZER]))
    for name in ("a", "b"):
        await client.create(CONFIGMAPS, a_map(name, owner))
    # Orphaning is for those that are known of: as in Kubernetes, whoever comes with the deletion may be collected.
    await client.create(CONFIGMAPS, a_map("gone", finalizers=[garbage_collector.FOREGROUND_FINALIZER]))
    await client.delete(CONFIGMAPS, await client.get(CONFIGMAPS, "gone", "default"))
    await wait_for_end(client, "gone")
    await client.delete(CONFIGMAPS, owner)
    await wait_for_end(client, "owner")
    for name in ("a", "b"):
        await wait_for(client, CONFIGMAPS, name, "default", until=is_unowned, timeout=AN_HOUR)


async def a_namespace_and_its_account(client: Client) -> None:
    await client.create(NAMESPACES, a_namespace("x"))
    for resource, name in ((SERVICE_ACCOUNTS, "default"), (CONFIGMAPS, "kube-root-ca.crt")):
        await wait_for(client, resource, name, "x", until=lambda obj: obj is not None, timeout=AN_HOUR)


async def a_definition_that_goes(client: Client) -> None:
    definition = the_definition()
    definition["metadata"]["finalizers"] = [crd_finalizer.CLEANUP_FINALIZER]
    definition = await client.create(CRDS, definition)
    for name in ("v", "w"):
        await client.create(WIDGETS, a_widget(name))
    await client.delete(CRDS, definition)
    await wait_for(client, CRDS, "widgets.example.com", until=lambda obj: obj is None, timeout=AN_HOUR)


def check(scenario: Scenario) -> None:
    report = perturb(scenario)
    assert report.calls > 0
    assert not report.failures, report


def test_garbage_is_collected_whatever_happens() -> None:
    check(Scenario("garbage", [CONFIGMAPS, CRDS], collecting, a_family_in_the_background))


def test_a_foreground_deletion_ends_whatever_happens() -> None:
    check(Scenario("garbage", [CONFIGMAPS, CRDS], collecting, a_family_in_the_foreground))


def test_orphans_stay_whatever_happens() -> None:
    check(Scenario("garbage", [CONFIGMAPS, CRDS], collecting, orphans))


def test_a_namespace_gets_its_account_whatever_happens() -> None:
    resources = [NAMESPACES, SERVICE_ACCOUNTS, CONFIGMAPS]
    check(
        Scenario("accounts", resources, lambda each: service_accounts.install(each, "pem"), a_namespace_and_its_account)
    )


def test_a_definition_takes_its_objects_along_whatever_happens() -> None:
    check(Scenario("definitions", [CRDS, WIDGETS], crd_finalizer.install, a_definition_that_goes))

"""Perturbation tests of the control plane controllers: the final state is always the same."""

from tapestry.apiserver.ca_publisher import CaBundle
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb
from tapestry.controlplane import crd_finalizer, garbage_collector, service_accounts
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, SERVICE_ACCOUNTS

from .objects import WIDGETS, new_map, new_namespace, new_widget, perturbed_metadata, widget_definition

AN_HOUR = 3600.0


async def wait_for_deletion(client: Client, name: str) -> None:
    await wait_for(client, CONFIGMAPS, name, "default", until=lambda obj: obj is None, timeout=AN_HOUR)


def install_garbage_collector(manager: Manager) -> None:
    garbage_collector.install(manager, perturbed_metadata(manager))


def is_unowned(obj: Object | None) -> bool:
    return obj is not None and not obj["metadata"].get("ownerReferences")


async def background_deletion(client: Client) -> None:
    owner = await client.create(CONFIGMAPS, new_map("owner"))
    other = await client.create(CONFIGMAPS, new_map("other"))
    child = await client.create(CONFIGMAPS, new_map("child", owner))
    await client.create(CONFIGMAPS, new_map("grandchild", child))
    await client.create(CONFIGMAPS, new_map("shared", owner, other))
    await client.delete(CONFIGMAPS, owner)
    await wait_for_deletion(client, "grandchild")
    await wait_for(
        client,
        CONFIGMAPS,
        "shared",
        "default",
        until=lambda obj: obj is not None and len(obj["metadata"]["ownerReferences"]) == 1,
        timeout=AN_HOUR,
    )


async def foreground_deletion(client: Client) -> None:
    owner = await client.create(CONFIGMAPS, new_map("owner", finalizers=[garbage_collector.FOREGROUND_FINALIZER]))
    child = await client.create(CONFIGMAPS, new_map("child", owner))
    await client.create(CONFIGMAPS, new_map("grandchild", child))
    await client.delete(CONFIGMAPS, owner)
    for name in ("owner", "child", "grandchild"):
        await wait_for_deletion(client, name)


async def orphaning(client: Client) -> None:
    owner = await client.create(CONFIGMAPS, new_map("owner", finalizers=[garbage_collector.ORPHAN_FINALIZER]))
    for name in ("a", "b"):
        await client.create(CONFIGMAPS, new_map(name, owner))
    # Only cached dependents are orphaned. As in Kubernetes, those created during the deletion may be collected.
    await client.create(CONFIGMAPS, new_map("probe", finalizers=[garbage_collector.FOREGROUND_FINALIZER]))
    await client.delete(CONFIGMAPS, await client.get(CONFIGMAPS, "probe", "default"))
    await wait_for_deletion(client, "probe")
    await client.delete(CONFIGMAPS, owner)
    await wait_for_deletion(client, "owner")
    for name in ("a", "b"):
        await wait_for(client, CONFIGMAPS, name, "default", until=is_unowned, timeout=AN_HOUR)


async def namespace_with_account(client: Client) -> None:
    await client.create(NAMESPACES, new_namespace("x"))
    for resource, name in ((SERVICE_ACCOUNTS, "default"), (CONFIGMAPS, "kube-root-ca.crt")):
        await wait_for(client, resource, name, "x", until=lambda obj: obj is not None, timeout=AN_HOUR)


async def deleted_definition(client: Client) -> None:
    definition = widget_definition()
    definition["metadata"]["finalizers"] = [crd_finalizer.CLEANUP_FINALIZER]
    definition = await client.create(CRDS, definition)
    for name in ("v", "w"):
        await client.create(WIDGETS, new_widget(name))
    await client.delete(CRDS, definition)
    await wait_for(client, CRDS, "widgets.example.com", until=lambda obj: obj is None, timeout=AN_HOUR)


def check(scenario: Scenario) -> None:
    report = perturb(scenario)
    assert report.calls > 0
    assert not report.failures, report


def test_perturbed_background_deletion_completes() -> None:
    check(Scenario("garbage", [CONFIGMAPS, CRDS], install_garbage_collector, background_deletion))


def test_perturbed_foreground_deletion_completes() -> None:
    check(Scenario("garbage", [CONFIGMAPS, CRDS], install_garbage_collector, foreground_deletion))


def test_perturbed_orphaning_keeps_dependents() -> None:
    check(Scenario("garbage", [CONFIGMAPS, CRDS], install_garbage_collector, orphaning))


def test_perturbed_namespace_gets_account() -> None:
    resources = [NAMESPACES, SERVICE_ACCOUNTS, CONFIGMAPS]
    check(
        Scenario(
            "accounts", resources, lambda each: service_accounts.install(each, CaBundle("pem")), namespace_with_account
        )
    )


def test_perturbed_definition_is_deleted_with_objects() -> None:
    check(Scenario("definitions", [CRDS, WIDGETS], crd_finalizer.install, deleted_definition))

"""VerticalPodAutoscalers of syncers, where the cluster has that kind."""

from tapestry.apis import keys
from tapestry.apis.clusterbindings import ClusterBindingSpec
from tapestry.client.client import Client
from tapestry.client.discovery import is_served
from tapestry.kube.conditions import find_condition, new_condition
from tapestry.kube.objects import (
    Object,
    is_owned_by,
    name_of,
    namespace_of,
    object_named,
    owner_reference,
    value_at,
    with_type_meta,
)
from tapestry.kube.resources import DEPLOYMENTS, VERTICAL_AUTOSCALERS

AUTOSCALED, DISABLED = "Autoscaled", "Disabled"
"""Condition of a binding that asks for autoscaling, and its reason after the binding no longer does."""


async def ensure_autoscaler(
    client: Client, binding: Object, spec: ClusterBindingSpec, deployment: Object
) -> Object | None:
    """Create or delete the VerticalPodAutoscaler of a syncer, and return the condition that reports it, if any.

    The Deployment is its owner, so that it is deleted with the syncer.
    """
    name, namespace = name_of(deployment), namespace_of(deployment)
    current = find_condition(value_at(binding, "status", "conditions"), AUTOSCALED)
    is_wanted = spec.syncer.autoscale == "vertical"
    if not is_wanted and (current is None or current["reason"] == DISABLED):
        return None
    if not await is_served(client, VERTICAL_AUTOSCALERS):
        message = "the cluster has no kind VerticalPodAutoscaler; install it, or set spec.syncer.autoscale to none"
        return new_condition(AUTOSCALED, False, "KindMissing", message) if is_wanted else disabled_condition()
    autoscaler = await client.find(VERTICAL_AUTOSCALERS, name, namespace)
    if autoscaler is not None and not is_owned_by(autoscaler, deployment):
        message = f"VerticalPodAutoscaler {namespace}/{name} does not belong to this binding; delete it"
        return new_condition(AUTOSCALED, False, "NameTaken", message)
    if not is_wanted:
        if autoscaler is not None:
            await client.delete_if_exists(VERTICAL_AUTOSCALERS, autoscaler)
        return disabled_condition()
    desired = vertical_autoscaler(deployment)
    if autoscaler is None:
        await client.create(VERTICAL_AUTOSCALERS, desired)
    else:
        await client.converge(VERTICAL_AUTOSCALERS, autoscaler, desired)
    return new_condition(AUTOSCALED, True, AUTOSCALED, f"VerticalPodAutoscaler {name} sets the resources of the syncer")


def disabled_condition() -> Object:
    return new_condition(AUTOSCALED, False, DISABLED, "spec.syncer.autoscale is none")


def vertical_autoscaler(deployment: Object) -> Object:
    name = name_of(deployment)
    autoscaler = with_type_meta(VERTICAL_AUTOSCALERS, object_named(name, namespace_of(deployment)))
    owner = owner_reference(with_type_meta(DEPLOYMENTS, deployment), block_deletion=False)
    metadata = {"labels": {keys.MANAGED_BY: keys.TAPESTRY}, "ownerReferences": [owner]}
    target = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "name": name}
    return {
        **autoscaler,
        "metadata": {**autoscaler["metadata"], **metadata},
        "spec": {"targetRef": target, "updatePolicy": {"updateMode": "Auto"}},
    }

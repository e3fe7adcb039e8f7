"""Admission policies that limit what the syncer's account can do with volumes in the physical cluster.

PersistentVolumes belong to no namespace, so roles alone would let the account delete the owner's, or create one that
leads to a node's disk.  A pod can reach storage without a claim of ours, too: by its own sources, or by an ephemeral
volume, whose claim a controller of the cluster creates.  The policies apply to that account only.  Those for volumes
and claims have two bindings: one checks the request alone, the other compares it with every volume that is not ours.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import AllowedVolumes
from tapestry.client.discovery import is_served
from tapestry.kube.errors import Forbidden
from tapestry.kube.names import HASH_LENGTH
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    Resource,
)
from tapestry.manager.join_steps import Cluster, JoinError, list_or_empty

SECRET_REFERENCES = (
    *("controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef"),
    *("controllerExpandSecretRef", "nodeExpandSecretRef"),
)
POD_SOURCES = ("configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret")
"""Sources of volumes that pods of ours have, at every level of Pod Security but `privileged`."""
DELETES, CREATES = 'request.operation == "DELETE"', 'request.operation == "CREATE"'


@dataclass(frozen=True, slots=True)
class SyncerAccount:
    """The account that the policies are about, and what is its own."""

    name: str
    mount: str
    virtual_cluster: str


async def check_volumes(binding: str, allowed: AllowedVolumes, physical: Cluster, *, are_trusted: bool) -> None:
    """Raises JoinError where volumes are to cross and nothing could limit them to ours."""
    if not allowed.drivers or are_trusted or await is_served(physical.client, ADMISSION_POLICIES):
        return
    raise JoinError(
        f"ClusterBinding {binding} allows volumes, and the physical cluster has no ValidatingAdmissionPolicy "
        "(Kubernetes 1.30 and later) that would limit the syncer to its own; upgrade it, remove allowedVolumes, "
        "or trust the syncer with every PersistentVolume there by --trust-volumes"
    )


async def apply_volume_policies(
    account: SyncerAccount, allowed: AllowedVolumes, level: str | None, labels: dict[str, str], physical: Cluster
) -> list[tuple[Resource, str]]:
    """Have the policies, where the API server has any; returns what there is of them, by kind and name."""
    if not await is_served(physical.client, ADMISSION_POLICIES):
        return []
    note = f"allows volumes of {', '.join(allowed.drivers)}"
    if allowed.volume_handles:
        note += f", and handles of others that match {', '.join(allowed.volume_handles)}"
    about_volumes = ADMISSION_POLICIES, admission_policy_name(account.name, PERSISTENT_VOLUMES)
    wanted = volume_policies(account, allowed, level, labels)
    for resource, obj in wanted:
        await physical.apply(resource, obj, note=note if (resource, name_of(obj)) == about_volumes else "")
    return [(resource, name_of(obj)) for resource, obj in wanted]


async def remove_stale_policies(current: list[tuple[Resource, str]], labels: dict[str, str], physical: Cluster) -> None:
    """Remove policies that limit nothing any more; whoever may not see them has made none."""
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    with suppress(Forbidden):
        for resource in (ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES):
            for obj in await list_or_empty(physical, resource, selector):
                if (resource, name_of(obj)) not in current:
                    await physical.remove(resource, obj)


# -- what they are


def volume_policies(
    account: SyncerAccount, allowed: AllowedVolumes, level: str | None, labels: dict[str, str]
) -> list[tuple[Resource, Object]]:
    """The policies and their bindings, in the order in which they are created; `level` is of Pod Security."""
    rules: dict[Resource, list[Object]] = {}
    if level != "privileged":
        rules[PODS] = [pod_rule()]
    if allowed.drivers:
        rules[PERSISTENT_VOLUMES] = list(volume_rules(account, allowed))
        rules[PERSISTENT_VOLUME_CLAIMS] = list(claim_rules(account))
    return [each for resource, found in rules.items() for each in policy_objects(account, resource, found, labels)]


def admission_policy_name(account: str, resource: Resource) -> str:
    return f"{account}-{resource.plural}"


def policy_objects(
    account: SyncerAccount, resource: Resource, rules: list[Object], labels: dict[str, str]
) -> Iterator[tuple[Resource, Object]]:
    name, is_compared = admission_policy_name(account.name, resource), resource is not PODS
    user = f"system:serviceaccount:{account.mount}:{account.name}"
    matched = {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "operations": ["CREATE", "UPDATE", "DELETE"] if is_compared else ["CREATE"],
        "resources": [resource.plural],
        "scope": "Namespaced" if resource.namespaced else "Cluster",
    }
    volumes = {"apiVersion": PERSISTENT_VOLUMES.api_version, "kind": PERSISTENT_VOLUMES.kind}
    spec = {
        "failurePolicy": "Fail",
        **({"paramKind": volumes} if is_compared else {}),
        "matchConstraints": {"resourceRules": [matched]},
        "matchConditions": [{"name": "syncer", "expression": f"request.userInfo.username == {cel_string(user)}"}],
        "validations": rules,
    }
    yield ADMISSION_POLICIES, {"metadata": {"name": name, "labels": labels}, "spec": spec}
    bound = {"policyName": name, "validationActions": ["Deny"]}
    yield ADMISSION_POLICY_BINDINGS, {"metadata": {"name": name, "labels": labels}, "spec": bound}
    if is_compared:
        foreign = {"key": keys.VIRTUAL_CLUSTER, "operator": "NotIn", "values": [account.virtual_cluster]}
        selected = {"selector": {"matchExpressions": [foreign]}, "parameterNotFoundAction": "Allow"}
        metadata = {"name": f"{name}-foreign", "labels": labels}
        yield ADMISSION_POLICY_BINDINGS, {"metadata": metadata, "spec": {**bound, "paramRef": selected}}


def pod_rule() -> Object:
    sources = " || ".join(f"has(volume.{source})" for source in POD_SOURCES)
    return {
        "expression": f"!has(object.spec.volumes) || object.spec.volumes.all(volume, {sources})",
        "message": f"spec.volumes: only {', '.join(POD_SOURCES)} are allowed",
    }


def volume_rules(account: SyncerAccount, allowed: AllowedVolumes) -> Iterator[Object]:
    yield from ownership_rules(account, "volume")
    drivers = ", ".join(map(cel_string, allowed.drivers))
    yield validation_rule(
        f"has(object.spec.csi) && object.spec.csi.driver in [{drivers}]",
        f"spec.csi.driver: only volumes of the CSI drivers {', '.join(allowed.drivers)} are allowed",
    )
    yield validation_rule(
        f"has(object.spec.claimRef) && object.spec.claimRef.namespace == {cel_string(account.mount)}",
        f"spec.claimRef: the volume has to be reserved for a claim in namespace {account.mount}",
    )
    references = [
        f"(!has(object.spec.csi.{field}) || object.spec.csi.{field}.namespace == {cel_string(account.mount)})"
        for field in SECRET_REFERENCES
    ]
    yield validation_rule(
        f"has(object.spec.csi) && {' && '.join(references)}",
        f"spec.csi: Secrets have to be in namespace {account.mount}",
    )
    own = "object.spec.csi.volumeHandle"
    other = f"!has(params.spec.csi) || params.spec.csi.volumeHandle != {own}"
    named = [f"{own}.matches({cel_string(glob_to_regex(pattern))})" for pattern in allowed.volume_handles]
    yield validation_rule(
        " || ".join(["params == null", "!has(object.spec.csi)", *named, other]),
        "spec.csi.volumeHandle: a volume that does not belong to this virtual cluster has that handle",
    )


def claim_rules(account: SyncerAccount) -> Iterator[Object]:
    yield from ownership_rules(account, "claim")
    yield validation_rule(
        f"has(object.spec.volumeName) && object.spec.volumeName.matches({cel_string(f'-[a-z2-7]{{{HASH_LENGTH}}}$')})",
        "spec.volumeName: the claim has to name a volume of this virtual cluster",
    )
    yield validation_rule(
        "params == null || !has(object.spec.volumeName) || object.spec.volumeName != params.metadata.name",
        "spec.volumeName: that volume does not belong to this virtual cluster",
    )


def ownership_rules(account: SyncerAccount, what: str) -> Iterator[Object]:
    """What is there has to be ours before a change, and what is to be there afterwards."""
    yield {
        "expression": f"{CREATES} || {ownership_expression('oldObject', account)}",
        "message": f"only a {what} of this virtual cluster can be changed or deleted",
    }
    labels = f"metadata.labels: the {what} has to carry the labels of this virtual cluster"
    yield validation_rule(ownership_expression("object", account), labels)


def ownership_expression(variable: str, account: SyncerAccount) -> str:
    labels = f"{variable}.metadata.labels"
    cluster, binding = cel_string(keys.VIRTUAL_CLUSTER), cel_string(keys.CLUSTER_BINDING_UID)
    return (
        f"has({labels}) && {cluster} in {labels} && {labels}[{cluster}] == {cel_string(account.virtual_cluster)}"
        f" && {binding} in {labels}"
    )


def validation_rule(expression: str, message: str) -> Object:
    """A validation of what is created or changed."""
    return {"expression": f"{DELETES} || {expression}", "message": message}


def cel_string(value: str) -> str:
    """A string literal of CEL."""
    return msgspec.json.encode(value).decode()


def glob_to_regex(pattern: str) -> str:
    """A pattern of volume handles as a regular expression."""
    return "(?s)^" + ".*".join(map(re.escape, pattern.split("*"))) + "$"

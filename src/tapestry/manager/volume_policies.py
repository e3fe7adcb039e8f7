"""Admission policies that restrict the syncer's access to volumes in the physical cluster.

PersistentVolumes are cluster-scoped, so with roles alone the syncer's account could delete the owner's volumes, or
create one for a node's disk.  A pod can also use storage without a claim of ours: by other volume sources, or by an
ephemeral volume, whose claim a controller creates.  The policies apply to that account only.  Those for volumes and
claims have two bindings: one checks the request alone, the other compares it with every foreign volume.
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
from tapestry.kube.pod_references import CSI_SECRET_FIELDS
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    Resource,
)
from tapestry.manager.join_steps import Cluster, JoinError, list_or_empty

POD_SOURCES = ("configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret")
"""Volume sources that twins may use, at every Pod Security level except `privileged`."""
DELETES, CREATES = 'request.operation == "DELETE"', 'request.operation == "CREATE"'


@dataclass(frozen=True, slots=True)
class SyncerAccount:
    """The account that the policies restrict, and the place of its objects."""

    name: str
    mount: str
    virtual_cluster: str


async def check_volumes(binding: str, allowed: AllowedVolumes, physical: Cluster, *, are_trusted: bool) -> None:
    """Raise JoinError if volumes are allowed but no admission policy can restrict them."""
    if not allowed.drivers or are_trusted or await is_served(physical.client, ADMISSION_POLICIES):
        return
    raise JoinError(
        f"ClusterBinding {binding} allows volumes, but the physical cluster has no ValidatingAdmissionPolicy "
        "(Kubernetes 1.30 and later) to restrict the syncer to its own; upgrade it, remove allowedVolumes, "
        "or use --trust-volumes to trust the syncer with all PersistentVolumes"
    )


async def apply_volume_policies(
    account: SyncerAccount, allowed: AllowedVolumes, level: str | None, labels: dict[str, str], physical: Cluster
) -> list[tuple[Resource, str]]:
    """Apply the policies if the API server serves them.  Return the applied objects by kind and name."""
    if not await is_served(physical.client, ADMISSION_POLICIES):
        return []
    note = f"allows volumes of {', '.join(allowed.drivers)}"
    if allowed.volume_handles:
        note += f", and handles of others that match {', '.join(allowed.volume_handles)}"
    volume_policy = ADMISSION_POLICIES, admission_policy_name(account.name, PERSISTENT_VOLUMES)
    desired = volume_policies(account, allowed, level, labels)
    for resource, obj in desired:
        await physical.apply(resource, obj, note=note if (resource, name_of(obj)) == volume_policy else "")
    return [(resource, name_of(obj)) for resource, obj in desired]


async def remove_stale_policies(current: list[tuple[Resource, str]], labels: dict[str, str], physical: Cluster) -> None:
    """Delete policies that are no longer needed.  An account that cannot list policies has created none."""
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    with suppress(Forbidden):
        for resource in (ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES):
            for obj in await list_or_empty(physical, resource, selector):
                if (resource, name_of(obj)) not in current:
                    await physical.remove(resource, obj)


# -- content


def volume_policies(
    account: SyncerAccount, allowed: AllowedVolumes, level: str | None, labels: dict[str, str]
) -> list[tuple[Resource, Object]]:
    """Return the policies and their bindings in the order of creation.  `level` is the Pod Security level."""
    rules: dict[Resource, list[Object]] = {}
    if level != "privileged":
        rules[PODS] = [pod_rule()]
    if allowed.drivers:
        rules[PERSISTENT_VOLUMES] = list(volume_rules(account, allowed))
        rules[PERSISTENT_VOLUME_CLAIMS] = list(claim_rules(account))
    return [each for kind, checks in rules.items() for each in policy_objects(account, kind, checks, labels)]


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
        for field in CSI_SECRET_FIELDS
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
    """Yield the rules that an object must be ours before and after a change."""
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
    """Return a validation of creates and updates."""
    return {"expression": f"{DELETES} || {expression}", "message": message}


def cel_string(value: str) -> str:
    return msgspec.json.encode(value).decode()


def glob_to_regex(pattern: str) -> str:
    """Return the regular expression of a pattern of volume handles."""
    return "(?s)^" + ".*".join(map(re.escape, pattern.split("*"))) + "$"

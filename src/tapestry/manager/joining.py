"""`tapestry join`: prepare a physical cluster and create its ClusterBinding.

    physical   the mount namespace with its safeguards, the PriorityClass, the policy CRD and the owner's first policy,
               and a service account for the syncer with exactly the permissions of `syncer_physical_permissions`
    virtual    a Secret with a kubeconfig of that account, and the ClusterBinding

Joining needs administrator access to both clusters.  The created objects do not use it afterwards.  Every step reads
first and writes only differences, so a second run changes nothing, except that it renews the token late in its life.
Existing objects without our labels are never taken over.

The labels contain the virtual cluster and the name of the binding, not its UID.  The UID is not known yet, and the
syncer must not delete the objects that it needs itself, which it selects by UID.
"""

import asyncio
import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import yaml

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, CLUSTER_BINDINGS, AllowedVolumes
from tapestry.apis.field_types import SecretReference
from tapestry.apis.mount_labels import DEFAULT_MOUNT_NAMESPACE, enforced_level, virtual_cluster_of
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.permissions import (
    SYNCER_STREAMS,
    Permission,
    Placeholder,
    policy_rules,
    single_permissions,
    syncer_physical_permissions,
    with_names,
)
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.apis.priorities import PRIORITY_CLASSES, priority_class
from tapestry.apis.release import install_command
from tapestry.client.access import Access
from tapestry.client.addresses import AddressPolicy
from tapestry.client.errors import KubeconfigError
from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.client.strict_kubeconfig import strict_access
from tapestry.client.watch import wait_for
from tapestry.kube.crds import InvalidSpec, crd, decode_spec
from tapestry.kube.errors import Forbidden, NotFound
from tapestry.kube.names import hashed_name, safe_label_value
from tapestry.kube.objects import (
    Object,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    object_named,
    uid_of,
    value_at,
    with_type_meta,
)
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    NAMESPACES,
    NODES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from tapestry.manager import safeguards
from tapestry.manager.connectivity import (
    KUBECONFIG_KEY,
    Connect,
    access_from_secret,
    claims_of,
    expiry_in,
    probe_cluster,
)
from tapestry.manager.installation import host_ports_namespace
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult
from tapestry.manager.location import manager_namespace
from tapestry.manager.mount_namespaces import apply_mount_namespace, record_safeguards, select_mount_namespace
from tapestry.manager.offers import DEFAULT_OFFER, Offer, policy_spec, validate_offer
from tapestry.manager.safeguards import Safeguards, apply_network_policy, apply_quota
from tapestry.manager.validation import BindingError
from tapestry.manager.volume_policies import SyncerAccount, apply_volume_policies, check_volumes, remove_stale_policies

TOKEN_SECONDS = int(timedelta(days=30).total_seconds())
RENEWED_AT = 0.8
"""Fraction of a token's lifetime after which it is renewed."""

PERMISSIONS_TIMEOUT, PERMISSIONS_INTERVAL = 15.0, 0.5
"""Seconds for a server to apply new roles, and seconds between two checks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a join."""

    name: str
    cluster_id: str
    mount_namespace: str = ""
    """Namespace of twins.  If empty, join chooses one."""
    taint: bool = False
    """Add a taint to virtual nodes, so that pods need a toleration."""
    offer: Offer = field(default_factory=Offer)
    """The owner's offer.  Fields that are None are not changed."""
    safeguards: Safeguards = field(default_factory=Safeguards)
    """The owner's safeguards."""
    volumes: AllowedVolumes = field(default_factory=AllowedVolumes)
    """Allowed volumes of an existing binding.  They need additional permissions."""
    streams: bool = True
    """Grant exec, attach and port-forward into twins."""
    metadata: tuple[str, ...] = ()
    """Entries for `allowedMetadata` of the binding.  Empty leaves it unchanged."""
    namespace: str = ""
    """Namespace of the Secret in the virtual cluster.  Empty means the manager's namespace."""
    is_prepared: bool = False
    """The owner has prepared the physical cluster with the chart tapestry-worker: create nothing there."""


def worker_values(name: str, uid: str) -> Object:
    """Return the values for the chart tapestry-worker.  `uid` is that of the virtual kube-system namespace."""
    return {"virtualCluster": virtual_cluster_label(uid), "binding": name}


async def join(
    plan: Plan, virtual: Cluster, physical: Cluster, access: Access, *, connect: Connect, now: datetime
) -> None:
    """Join the cluster of `access`.  Raise JoinError, if possible before anything is written."""
    validate_offer(plan.offer)
    safeguards.validate_safeguards(plan.safeguards)
    uid = await virtual.identity()
    binding = await virtual.find(CLUSTER_BINDINGS, object_named(plan.name))
    if plan.is_prepared:
        mount = plan.mount_namespace or value_at(binding, "spec", "mountNamespace", default=DEFAULT_MOUNT_NAMESPACE)
    else:
        mount = await select_mount_namespace(plan.mount_namespace, binding, uid, physical)
    plan = replace(plan, mount_namespace=mount, volumes=allowed_volumes(plan, binding))
    await check_fit(plan, uid, virtual, physical)
    prepared = await prepared_objects(plan, uid, physical) if plan.is_prepared else None
    current = prepared[0] if prepared else await physical.find(NAMESPACES, object_named(mount))
    plan = replace(
        plan,
        streams=safeguards.allows_streams(current, plan.safeguards.streams),
        metadata=plan.metadata if prepared else await allowed_metadata(plan, binding, physical),
        namespace=plan.namespace or await manager_namespace(virtual.client),
    )
    await check_volumes(plan.name, plan.volumes, physical, are_trusted=plan.safeguards.trust_volumes)
    kubeconfig(access, "any")
    if AddressPolicy().denial_reason(urlsplit(access.server).hostname or ""):
        note = "loopback; syncers reach it only on that machine, and the manager rejects it without --allow-loopback"
        physical.report(Step(StepResult.WARNING, physical.role, access.server, note))
    namespace, account = prepared or await prepare(plan, uid, physical)
    secret = await apply_kubeconfig_secret(plan, uid, virtual, physical, account, access, now)
    desired = desired_binding(plan)
    if binding is None and enforced_level(namespace) == "restricted":
        desired["spec"]["podSecurity"] = "restricted"  # the default is less restrictive than the owner's level
    await virtual.apply(CLUSTER_BINDINGS, desired)
    await check_permissions(plan, secret, account, physical, connect)


# -- checks


async def check_fit(plan: Plan, uid: str, virtual: Cluster, physical: Cluster) -> None:
    """Raise JoinError if the binding could not be created or would not become ready."""
    label = f"{keys.VIRTUAL_CLUSTER}={virtual_cluster_label(uid)}"
    place = plan.mount_namespace if plan.is_prepared else None
    try:
        identity = await physical.identity()
        accounts = await physical.client.list(SERVICE_ACCOUNTS, place, labels=label)
    except Forbidden as error:
        hint = "with --prepared, use the chart's account for joining and its --mount-namespace"
        raise JoinError(f"{error.message}; use an administrator's kubeconfig; {hint}") from error
    if uid == identity:
        raise JoinError("both kubeconfigs lead to the same cluster, but a cluster cannot lease itself")
    try:
        decode_spec(CLUSTER_BINDING, desired_binding(plan))
    except InvalidSpec as error:
        raise JoinError(f"{error}; choose another with --cluster-id or --mount-namespace") from error
    try:
        bindings = await virtual.client.list(CLUSTER_BINDINGS)
    except NotFound:
        message = f"the virtual cluster does not serve ClusterBindings; run `{install_command()}` there first"
        raise JoinError(message) from None
    joined = {labels_of(account).get(keys.CLUSTER_BINDING, "") for account in accounts}
    for binding in bindings:
        if conflict := binding_conflict(binding, plan, identity, joined):
            raise JoinError(conflict)


def allowed_volumes(plan: Plan, binding: Object | None) -> AllowedVolumes:
    """Return the allowed volumes of an existing binding, or those of the plan."""
    return decode_spec(CLUSTER_BINDING, binding).allowed_volumes if binding is not None else plan.volumes


async def allowed_metadata(plan: Plan, binding: Object | None, physical: Cluster) -> tuple[str, ...]:
    """Return the allowed metadata.  If nodes are simulated, add the keys that their kubelets read."""
    if not await physical.client.list(NODES, labels=keys.SIMULATED_NODE):
        return plan.metadata
    listed = decode_spec(CLUSTER_BINDING, binding).allowed_metadata if binding is not None else ()
    return tuple(dict.fromkeys((*listed, *plan.metadata, f"{keys.SIMULATED_PREFIX}*")))


def binding_conflict(binding: Object, plan: Plan, identity: str, joined: set[str]) -> str:
    """Return the conflict of an existing binding with the plan, or "".  `joined` are bindings with an account there."""
    name, spec, pinned = name_of(binding), binding["spec"], value_at(binding, "status", "identity")
    if name != plan.name:
        if spec["clusterID"] == plan.cluster_id:
            return f"clusterID {plan.cluster_id} belongs to ClusterBinding {name}; choose another with --cluster-id"
        is_same_cluster = pinned == identity or (pinned is None and safe_label_value(name) in joined)
        return f"the cluster has already joined as {name}; unjoin that first" if is_same_cluster else ""
    if is_deleting(binding):
        return f"ClusterBinding {name} is being deleted; wait, or run `tapestry unjoin {name}`"
    if spec["clusterID"] != plan.cluster_id:
        return f"ClusterBinding {name} has clusterID {spec['clusterID']}; give --cluster-id {spec['clusterID']}"
    mount = spec.get("mountNamespace", plan.mount_namespace)
    if mount != plan.mount_namespace:
        return f"ClusterBinding {name} has mountNamespace {mount}; give --mount-namespace {mount}"
    if pinned not in (None, identity):
        return f"ClusterBinding {name} is bound to another cluster, {pinned}; choose another name, or unjoin it first"
    return ""


# -- physical cluster


def owner_labels(uid: str, binding: str) -> dict[str, str]:
    """Return the labels of objects that join creates for a binding.  `uid` is that of the virtual kube-system."""
    return {
        keys.MANAGED_BY: keys.TAPESTRY,
        keys.VIRTUAL_CLUSTER: virtual_cluster_label(uid),
        keys.CLUSTER_BINDING: safe_label_value(binding),
    }


def selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def account_name(uid: str, binding: str) -> str:
    """Return the name of the account and roles in the physical cluster, unique across virtual clusters."""
    return hashed_name(f"tapestry-syncer-{binding}", uid, binding)


def policy_name(uid: str, binding: str) -> str:
    return hashed_name(binding, uid, binding)


async def prepare(plan: Plan, uid: str, physical: Cluster) -> tuple[Object, Object]:
    """Apply everything in the physical cluster.  Return the mount namespace and the syncer's account."""
    requested, mount = plan.safeguards, plan.mount_namespace
    namespace = await apply_mount_namespace(mount, uid, requested, physical)
    await physical.apply(PRIORITY_CLASSES, priority_class(), shared=True)
    definition = crd(POLICY)
    labelled = {**definition["metadata"], "labels": {keys.MANAGED_BY: keys.TAPESTRY}}
    await physical.apply(CRDS, {**definition, "metadata": labelled}, shared=True)
    await apply_policy(plan, uid, physical)
    name, labels = policy_name(uid, plan.name), owner_labels(uid, plan.name)
    has_quota = await apply_quota(name, mount, labels, requested, physical)
    is_isolated = await apply_network_policy(name, mount, labels, requested, namespace, physical)
    name, account = account_name(uid, plan.name), None
    syncer, level = SyncerAccount(name, mount, virtual_cluster_label(uid)), enforced_level(namespace)
    policies = await apply_volume_policies(syncer, plan.volumes, level, labels, physical)  # before the permissions
    for resource, desired in account_objects(name, plan, labels):
        applied = await physical.apply(resource, desired)
        account = account or applied
    assert account is not None
    await remove_stale_policies(policies, labels, physical)
    installed = [
        safeguards.NETWORK_POLICY if is_isolated else safeguards.NO_NETWORK_POLICY,
        *([safeguards.QUOTA] if has_quota else []),
        *([safeguards.VOLUME_POLICIES] if policies and plan.volumes.drivers else []),
        *([] if plan.streams else [safeguards.NO_EXEC]),
    ]
    await record_safeguards(namespace, installed, physical)
    return namespace, account


async def prepared_objects(plan: Plan, uid: str, physical: Cluster) -> tuple[Object, Object]:
    """Return the mount namespace and the syncer's account that the owner has created with the chart."""
    namespace = await physical.client.find(NAMESPACES, plan.mount_namespace)
    accounts = await physical.client.list(
        SERVICE_ACCOUNTS, plan.mount_namespace, labels=selector(owner_labels(uid, plan.name))
    )
    if namespace is None or virtual_cluster_of(namespace) != virtual_cluster_label(uid) or not accounts:
        values = f"`tapestry join {plan.name} --print-worker-values`"
        problem = f"namespace {plan.mount_namespace} of the physical cluster is not prepared for this binding"
        raise JoinError(f"{problem}; its owner installs the chart tapestry-worker with the values of {values}")
    physical.report(Step(StepResult.UNCHANGED, physical.role, f"ServiceAccount {key_of(accounts[0])}", "of the chart"))
    return namespace, accounts[0]


async def apply_policy(plan: Plan, uid: str, physical: Cluster) -> None:
    """Apply the owner's policy.  If the owner wrote another one and the plan has no offer, leave that in effect.

    The totals of the quota are divided among the nodes, so that schedulers see them.
    """
    name, requested = policy_name(uid, plan.name), safeguards.totals(plan.safeguards)
    current = await wait_for(physical.client, POLICIES, name, until=lambda _: True)  # the CRD may be new
    others = [each for each in await physical.client.list(POLICIES) if applies_to_plan(plan, each)]
    if current is None and others and plan.offer == Offer():
        note = "determines what is leased"
        if requested:
            note += "; set its totalLimits too, so that the virtual nodes show the totals"
        physical.report(Step(StepResult.UNCHANGED, physical.role, f"{POLICIES.kind} {name_of(others[0])}", note))
        return
    offer = plan.offer
    if current is None and offer.percent is None:
        offer = replace(offer, percent=DEFAULT_OFFER.percent)
    nodes = await physical.client.list(NODES) if offer.percent is not None else []
    resources = {each for node in nodes for each in value_at(node, "status", "allocatable", default={})}
    spec = policy_spec(plan.name, offer, resources)
    if requested:
        spec["totalLimits"] = safeguards.total_limits(value_at(current, "spec", "totalLimits", default=()), requested)
    if current is not None and decode_spec(POLICY, current) == decode_spec(
        POLICY, {"spec": {**current["spec"], **spec}}
    ):
        spec = {}  # equal except for defaults that the server added
    await physical.apply(POLICIES, {"metadata": {"name": name, "labels": owner_labels(uid, plan.name)}, "spec": spec})


def applies_to_plan(plan: Plan, policy: Object) -> bool:
    return not is_deleting(policy) and value_at(policy, "spec", "cluster") in (plan.name, plan.cluster_id)


def required_permissions(plan: Plan) -> tuple[Permission, ...]:
    return (*syncer_physical_permissions(plan.volumes), *(SYNCER_STREAMS if plan.streams else ()))


def syncer_permissions(plan: Plan, account: str) -> list[Permission]:
    """Return the permissions of the syncer in the physical cluster.  Its account is in the mount namespace."""
    mount = plan.mount_namespace
    places = {
        Placeholder.MOUNT_NAMESPACE: mount,
        Placeholder.SYNCER_ACCOUNT: account,
        Placeholder.SYNCER_ACCOUNT_NAMESPACE: mount,
    }
    return with_names(required_permissions(plan), places)


def account_objects(name: str, plan: Plan, labels: dict[str, str]) -> Iterator[tuple[Resource, Object]]:
    """Yield the syncer's account, then the roles with its permissions."""
    mount = plan.mount_namespace
    yield SERVICE_ACCOUNTS, {**labelled_metadata(name, labels, mount), "automountServiceAccountToken": False}
    permissions = syncer_permissions(plan, name)
    cluster_wide = [permission for permission in permissions if not permission.namespace]
    namespaced = [permission for permission in permissions if permission.namespace]
    yield from role_objects(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, cluster_wide, labelled_metadata(name, labels), mount)
    yield from role_objects(ROLES, ROLE_BINDINGS, namespaced, labelled_metadata(name, labels, mount), mount)


def labelled_metadata(name: str, labels: dict[str, str], namespace: str | None = None) -> Object:
    return {"metadata": {**object_named(name, namespace)["metadata"], "labels": labels}}


def role_objects(
    role: Resource, binding: Resource, permissions: Iterable[Permission], content: Object, mount: str
) -> Iterator[tuple[Resource, Object]]:
    name = name_of(content)
    yield role, {**content, "rules": policy_rules(permissions)}
    yield (
        binding,
        {
            **content,
            "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": name},
            "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": name, "namespace": mount}],
        },
    )


# -- virtual cluster


def desired_binding(plan: Plan) -> Object:
    return with_type_meta(
        CLUSTER_BINDINGS,
        {
            **object_named(plan.name),
            "spec": {
                "clusterID": plan.cluster_id,
                "secretRef": {"name": plan.name, "namespace": plan.namespace or keys.SYSTEM_NAMESPACE},
                "mountNamespace": plan.mount_namespace,
                "disableNodeDefaultTaint": not plan.taint,
                **({"allowedMetadata": list(plan.metadata)} if plan.metadata else {}),
            },
        },
    )


async def apply_kubeconfig_secret(
    plan: Plan, uid: str, virtual: Cluster, physical: Cluster, account: Object, access: Access, now: datetime
) -> Object:
    """Apply the Secret with the kubeconfig of the account.  A valid token is kept until most of its life is over."""
    for namespace in (object_named(plan.namespace), host_ports_namespace()):
        await virtual.apply(NAMESPACES, namespace, shared=True)
    secret = labelled_metadata(plan.name, owner_labels(uid, plan.name), plan.namespace)
    token = await reusable_token(await virtual.find(SECRETS, secret), account, now)
    if not token:
        response = await physical.client.request_token(name_of(account), plan.mount_namespace, seconds=TOKEN_SECONDS)
        token = response["token"]
    data = base64.b64encode(kubeconfig(access, token)).decode()
    expires = expiry_in(claims_of([("Authorization", f"Bearer {token}")]))
    note = f"its token expires on {expires:%Y-%m-%d}" if expires else ""
    return await virtual.apply(SECRETS, {**secret, "data": {KUBECONFIG_KEY: data}}, note=note)


async def reusable_token(secret: Object | None, account: Object, now: datetime) -> str:
    """Return the token in a Secret if it can stay in use, otherwise ""."""
    if secret is None:
        return ""
    try:
        headers = await access_from_secret(secret, reference_to(secret), allow_loopback=True).credentials.headers()
    except BindingError:
        return ""
    token = next((text.removeprefix("Bearer ") for _, text in headers), "")
    return token if is_token_reusable(claims_of(headers), account, now) else ""


def reference_to(secret: Object) -> SecretReference:
    return SecretReference(name_of(secret), namespace_of(secret) or "")


def is_token_reusable(claims: Object, account: Object, now: datetime) -> bool:
    """Return whether a token belongs to this account (by UID) and most of its life is not over."""
    issued, expires = claims.get("iat"), claims.get("exp")
    if not isinstance(issued, int) or not isinstance(expires, int):
        return False
    is_same_account = value_at(claims, "kubernetes.io", "serviceaccount", "uid") == uid_of(account)
    return is_same_account and now.timestamp() < issued + RENEWED_AT * (expires - issued)


def kubeconfig(access: Access, token: str) -> bytes:
    """Return a kubeconfig for the server of `access` with a token.  Raise JoinError if a binding could not use it."""
    authority = access.verification.authority
    cluster = {
        "server": access.server,
        "certificate-authority-data": base64.b64encode(authority.read()).decode() if authority else None,
        "insecure-skip-tls-verify": access.verification.insecure or None,
        "tls-server-name": access.tls_server_name,
        "proxy-url": access.proxy_url,
    }
    given = {key: value for key, value in cluster.items() if value}
    document = kubeconfig_document("syncer", given, {"token": token})
    data = yaml.safe_dump(document).encode()  # sorted, as the syncer writes it when it renews the token
    try:
        strict_access(data, allow_loopback=True)  # the manager decides whether loopback is allowed
    except KubeconfigError as error:
        raise JoinError(f"the cluster's kubeconfig cannot be used by a syncer: {error}") from error
    return data


async def check_permissions(plan: Plan, secret: Object, account: Object, physical: Cluster, connect: Connect) -> None:
    """Check every permission as the syncer, and report those that are missing.  Raise JoinError if any are."""
    access = access_from_secret(secret, reference_to(secret), allow_loopback=True)
    missing = await missing_permissions(plan, access, connect)
    for permission in missing:
        physical.report(Step(StepResult.MISSING, physical.role, str(permission)))
    count = sum(
        permission not in missing for permission in single_permissions(syncer_permissions(plan, name_of(account)))
    )
    physical.report(Step(StepResult.GRANTED, physical.role, f"{count} permissions, checked as the syncer"))
    if missing:
        raise JoinError(
            f"{len(missing)} permissions are missing although roles grant them; check what denies them there"
        )


async def missing_permissions(plan: Plan, access: Access, connect: Connect) -> tuple[Permission, ...]:
    """Return the denied permissions.  Servers apply new roles with a delay, so the check is repeated for a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PERMISSIONS_TIMEOUT
    while True:
        try:
            missing = (await probe_cluster(access, plan.mount_namespace, required_permissions(plan), connect)).missing
            if not missing or loop.time() >= deadline:
                return missing
        except BindingError as error:
            if loop.time() >= deadline:
                raise JoinError(f"the new kubeconfig does not work: {error.message}") from error
        await asyncio.sleep(PERMISSIONS_INTERVAL)

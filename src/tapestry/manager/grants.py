"""Reconcilers of the rights of syncers that depend on nodes and pods.

    nodes   one ClusterRole for each binding: the binding itself, and its nodes by name
    pods    one Role for each binding and namespace with pods on its nodes: the Secrets and service accounts that these
            pods use by name, ConfigMaps, claims and evictions by namespace

The manager reads nodes and pods itself and does not use what a syncer reports about them.  Rights are added at once and
removed a while after their last use.  They are only granted to an account that belongs to the binding.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, ClusterBindingSpec
from tapestry.apis.names import VIRTUAL_NODE_PREFIX, syncer_name
from tapestry.apis.permissions import (
    SYNC_BACK_PERMISSIONS,
    SYNCER_BINDING,
    SYNCER_CLAIMS,
    SYNCER_NODES,
    SYNCER_PODS,
    SYNCER_SECRETS,
    SYNCER_TOKENS,
    SYNCER_VOLUME_READS,
    Permission,
    Placeholder,
    policy_rules,
    with_names,
    with_object_names,
)
from tapestry.client.client import Client
from tapestry.controller import Informer, Result, Terminal
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.errors import AlreadyExists, Forbidden, NotFound, is_namespace_terminating
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    is_owned_by,
    key_of,
    name_of,
    namespace_of,
    owner_reference,
    uid_of,
    value_at,
)
from tapestry.kube.pod_references import CSI_SECRET_FIELDS, ReferenceKind
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Resource,
)
from tapestry.manager.pod_needs import TOKEN, Need, NeedIndex, PodNeeds, Scope, names_of_kind
from tapestry.manager.syncers import binding_uid_of

GRANT_KINDS = (ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)
SECONDS_PER_NAME = 0.0005
"""Pause between two writes of a role, for each name in it: the cost of many changes stays linear."""
DELETED_NODE_SECONDS = 60.0
"""Seconds for which a syncer keeps the rights on a deleted node."""
CLAIM_RETRY_SECONDS = 2.0
"""Interval of reconciles while a claim of a pod is not bound."""


@dataclass
class SyncerGrants:
    """Keep the roles of each binding.  Keys are binding names, and `NAMESPACE/BINDING` for pods."""

    client: Client
    now: Callable[[], datetime]
    home: str
    """Namespace of the accounts of syncers."""
    excluded: frozenset[str]
    """Namespaces in which nothing is granted, in addition to `kube-*`."""
    bindings: Informer
    accounts: Informer
    nodes: Informer
    caches: Mapping[Resource, Informer]
    """Informers of the roles of syncers, by kind."""
    index: NeedIndex = field(default_factory=NeedIndex)
    written_at: dict[tuple[Resource, str], datetime] = field(default_factory=dict)
    deleted_nodes: dict[str, dict[str, datetime]] = field(default_factory=dict)
    """Deleted nodes by the name of their binding, and when their rights end: the syncer deletes their leases last."""
    volume_secrets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Secrets that the volume of a bound claim needs, by the key of the claim.  A volume never changes them."""

    async def reconcile_nodes(self, name: str) -> Result | None:
        binding = self.bindings.store.get(name)
        spec = self.granted_spec(binding)
        if binding is None or spec is None:
            self.deleted_nodes.pop(name, None)
            return None
        nodes = {name_of(node) for node in self.nodes.store.by("binding", uid_of(binding))}
        now, deleted = self.now(), self.deleted_nodes.get(name, {})
        for node in [node for node, until in deleted.items() if until <= now or node in nodes]:
            del deleted[node]
        grant = Grant(binding, spec, self.home, binding_permissions(binding, spec, [*nodes, *deleted]))
        result = await self.apply(grant)
        times = [*deleted.values(), *([result.requeue_at] if result and result.requeue_at else [])]
        return Result(requeue_at=min(times)) if times else None

    async def reconcile_pods(self, key: str) -> Result | None:
        namespace, name = key.split("/")
        binding = self.bindings.store.get(name)
        spec = self.granted_spec(binding)
        if binding is None or spec is None or not self.is_allowed(namespace):
            return None
        now, scope = self.now(), Scope(uid_of(binding), namespace)
        needs, expiry = self.index.needs(scope, now, with_daemons=spec.running_daemonset_by_default)
        if not needs:
            await self.revoke(binding, namespace)
            return None
        secrets, is_complete = await self.secrets_of_claims(namespace, spec, needs)
        grant = Grant(binding, spec, self.home, pod_permissions(namespace, spec, needs, secrets), namespace)
        retry = None if is_complete else now + timedelta(seconds=CLAIM_RETRY_SECONDS)
        result = await self.apply(grant)
        times = [each for each in (expiry, retry, result.requeue_at if result else None) if each is not None]
        return Result(requeue_at=min(times)) if times else None

    def is_allowed(self, namespace: str) -> bool:
        return not namespace.startswith("kube-") and namespace not in self.excluded

    def granted_spec(self, binding: Object | None) -> ClusterBindingSpec | None:
        """Return the spec of a binding whose syncer needs rights: it has an account, and is not done unbinding."""
        if binding is None or not is_active(binding):
            return None
        try:
            spec = decode_spec(CLUSTER_BINDING, binding)
        except InvalidSpec:
            return None
        account = self.accounts.store.get(f"{self.home}/{syncer_name(spec.cluster_id)}")
        return spec if account is not None and is_owned_by(account, binding) else None

    async def secrets_of_claims(
        self, namespace: str, spec: ClusterBindingSpec, needs: Iterable[Need]
    ) -> tuple[set[str], bool]:
        """Return the Secrets that the volumes of claims need, and whether all claims are bound."""
        claims = names_of_kind(needs, ReferenceKind.CLAIM) if spec.allowed_volumes.drivers else set()
        unused = {key for key in self.volume_secrets if key.startswith(f"{namespace}/")}
        unused -= {f"{namespace}/{claim}" for claim in claims}
        for key in unused:
            del self.volume_secrets[key]
        for claim in claims:
            if f"{namespace}/{claim}" not in self.volume_secrets:
                found = await self.find_volume(namespace, claim)
                if found is not None:
                    self.volume_secrets[f"{namespace}/{claim}"] = secrets_of_volume(found, namespace, spec)
        known = [self.volume_secrets.get(f"{namespace}/{claim}") for claim in claims]
        return {name for names in known if names for name in names}, None not in known

    async def find_volume(self, namespace: str, claim: str) -> Object | None:
        """Return the volume that is bound to a claim."""
        found = await self.client.find(PERSISTENT_VOLUME_CLAIMS, claim, namespace)
        name = value_at(found, "spec", "volumeName")
        volume = await self.client.find(PERSISTENT_VOLUMES, name) if found is not None and name else None
        is_bound = found is not None and value_at(volume, "spec", "claimRef", "uid") == uid_of(found)
        return volume if is_bound else None

    # -- writing

    async def apply(self, grant: "Grant") -> Result | None:
        """Write a role and its binding, unless the role was written a moment ago."""
        now, role, (role_kind, binding_kind) = self.now(), grant.role(), grant.kinds
        key, cached = (role_kind, key_of(role)), self.caches[role_kind].store.get(key_of(role))
        is_changed = cached is None or cached.get("rules") != role["rules"]
        if is_changed and key in self.written_at:
            names = sum(len(each.names) for each in grant.permissions)
            due = self.written_at[key] + timedelta(seconds=names * SECONDS_PER_NAME)
            if due > now:
                return Result(requeue_at=due)
        try:
            await self.ensure(role_kind, role, grant.binding)
            if is_changed:
                self.written_at[key] = now
            await self.ensure(binding_kind, grant.role_binding(), grant.binding)
        except NotFound:  # the namespace is deleted, and its pods with it
            self.written_at.pop(key, None)
        except Forbidden as error:
            if not is_namespace_terminating(error):
                raise
            self.written_at.pop(key, None)
        return None

    async def ensure(self, resource: Resource, desired: Object, binding: Object) -> None:
        current = self.caches[resource].store.get(key_of(desired))
        if current is None:
            try:
                await self.client.create(resource, desired)
                return
            except AlreadyExists:  # the cache lags, or the object lacks our labels
                current = await self.client.get(resource, name_of(desired), namespace_of(desired))
        if not is_owned_by(current, binding):
            problem = f"{resource.kind} {key_of(desired)} does not belong to ClusterBinding {name_of(binding)}"
            raise Terminal("NameTaken", f"{problem}; delete it, or recreate the binding with another clusterID")
        await self.client.converge(resource, current, desired)

    async def revoke(self, binding: Object, namespace: str) -> None:
        """Delete the roles of a binding in a namespace."""
        for resource in (ROLE_BINDINGS, ROLES):
            for obj in self.caches[resource].store.by("binding", uid_of(binding)):
                if namespace_of(obj) == namespace and not is_deleting(obj):
                    await self.client.delete_if_exists(resource, obj)
                    self.written_at.pop((resource, key_of(obj)), None)

    async def remove(self, binding: Object) -> bool:
        """Delete all roles of a deleted binding, which live lists find.  Return whether there were none."""
        labels = f"{keys.GRANT},{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
        found = [(kind, obj) for kind in GRANT_KINDS for obj in await self.client.list(kind, labels=labels)]
        for resource, obj in found:
            if not is_deleting(obj):
                await self.client.delete_if_exists(resource, obj)
        return not found

    # -- changes of nodes, pods and roles

    def on_node_change(self, old: Object | None, new: Object | None) -> tuple[set[str], set[str]]:
        """Record a change of a node.  Return the keys of both reconcilers to requeue."""
        node = new or old
        assert node is not None
        uids = [next(iter(binding_uid_of(each)), None) if each is not None else None for each in (old, new)]
        scopes = self.index.set_node(name_of(node), uids[1], self.now())
        if uids[0] == uids[1]:
            return set(), set()
        if new is None and uids[0] is not None:
            until = self.now() + timedelta(seconds=DELETED_NODE_SECONDS)
            for name in self.names_of(uids[0]):
                self.deleted_nodes.setdefault(name, {})[name_of(node)] = until
        return {name for uid in uids if uid for name in self.names_of(uid)}, self.pod_keys(scopes)

    def on_pod_change(self, old: PodNeeds | None, new: PodNeeds | None) -> set[str]:
        """Record a change of a pod.  Return the keys to requeue."""
        return self.pod_keys(self.index.set_pod(old, new, self.now()))

    def pod_keys(self, scopes: Iterable[Scope]) -> set[str]:
        return {f"{scope.namespace}/{name}" for scope in scopes for name in self.names_of(scope.binding_uid)}

    def all_pod_keys(self, binding: Object) -> list[str]:
        return [f"{namespace}/{name_of(binding)}" for namespace in self.index.namespaces(uid_of(binding))]

    def keys_of_role(self, role: Object) -> list[str]:
        """Return the key of the reconciler that maintains a role."""
        names, namespace = [name_of(each) for each in self.bindings_of(role)], namespace_of(role)
        return [f"{namespace}/{name}" for name in names] if namespace else names

    def bindings_of(self, obj: Object) -> list[Object]:
        """Return the binding that an object is labelled with."""
        return [each for uid in binding_uid_of(obj) for each in self.bindings.store.by("uid", uid)]

    def names_of(self, binding_uid: str) -> list[str]:
        return [name_of(each) for each in self.bindings.store.by("uid", binding_uid)]


@dataclass(frozen=True)
class Grant:
    """A role of a syncer, in one namespace or cluster-wide."""

    binding: Object
    spec: ClusterBindingSpec
    home: str
    permissions: list[Permission]
    namespace: str | None = None

    @property
    def kinds(self) -> tuple[Resource, Resource]:
        return (ROLES, ROLE_BINDINGS) if self.namespace else (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)

    @property
    def metadata(self) -> Object:
        name = grant_name(self.spec.cluster_id, self.namespace)
        labels = {
            keys.MANAGED_BY: keys.TAPESTRY,
            keys.GRANT: "pods" if self.namespace else "nodes",
            keys.CLUSTER_BINDING: safe_label_value(name_of(self.binding)),
            keys.CLUSTER_BINDING_UID: uid_of(self.binding),
        }
        place = {"namespace": self.namespace} if self.namespace else {}
        owner = owner_reference(self.binding, block_deletion=False)
        return {"name": name, **place, "labels": labels, "ownerReferences": [owner]}

    def role(self) -> Object:
        return {"metadata": self.metadata, "rules": policy_rules(self.permissions)}

    def role_binding(self) -> Object:
        metadata = self.metadata
        account = syncer_name(self.spec.cluster_id)
        return {
            "metadata": metadata,
            "roleRef": {"apiGroup": ROLES.group, "kind": self.kinds[0].kind, "name": metadata["name"]},
            "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": account, "namespace": self.home}],
        }


def grant_name(cluster_id: str, namespace: str | None) -> str:
    """Return the name of a role.  No clusterID has a colon, so no other binding has the name."""
    return f"{syncer_name(cluster_id)}:{'pods' if namespace else 'nodes'}"


def binding_permissions(binding: Object, spec: ClusterBindingSpec, nodes: Iterable[str]) -> list[Permission]:
    """Return the cluster-wide permissions of a binding's syncer."""
    places = {
        Placeholder.BINDING: name_of(binding),
        Placeholder.BINDING_UID: uid_of(binding),
        Placeholder.CLUSTER_ID: spec.cluster_id,
    }
    volumes = SYNCER_VOLUME_READS if spec.allowed_volumes.drivers else ()
    return [*with_names(SYNCER_BINDING, places), *volumes, *with_object_names(SYNCER_NODES, nodes)]


def pod_permissions(
    namespace: str, spec: ClusterBindingSpec, needs: Iterable[Need], secrets_of_claims: Iterable[str]
) -> list[Permission]:
    """Return the permissions of a syncer in a namespace whose pods have these needs."""
    secrets = {*names_of_kind(needs, ReferenceKind.SECRET), *secrets_of_claims}
    has_claims = bool(spec.allowed_volumes.drivers and names_of_kind(needs, ReferenceKind.CLAIM))
    permissions = [
        *SYNCER_PODS,
        *(SYNCER_CLAIMS if has_claims else ()),
        *with_object_names(SYNCER_SECRETS, secrets),
        *with_object_names(SYNCER_TOKENS, names_of_kind(needs, TOKEN)),
    ]
    if namespace in spec.sync_back.namespaces:
        for resource, patches in SYNC_BACK_PERMISSIONS.items():
            permissions += with_object_names(patches, names_of_kind(needs, resource.plural))
    return permissions


def secrets_of_volume(volume: Object, namespace: str, spec: ClusterBindingSpec) -> tuple[str, ...]:
    """Return the Secrets in the namespace of the claim that a volume of an allowed driver needs."""
    csi = value_at(volume, "spec", "csi", default={})
    if csi.get("driver") not in spec.allowed_volumes.drivers:
        return ()
    references = [csi.get(each) or {} for each in CSI_SECRET_FIELDS]
    return tuple(sorted({each["name"] for each in references if each.get("namespace") == namespace}))


def is_active(binding: Object) -> bool:
    """Return whether the syncer of a binding has work: while unbinding, until it removes its finalizer."""
    if not is_deleting(binding):
        return True
    is_forced = annotations_of(binding).get(keys.FORCE_UNBIND) == "true"
    return keys.SYNCER_FINALIZER in (binding["metadata"].get("finalizers") or ()) and not is_forced


def is_on_virtual_node(pod: Object) -> bool:
    """Return whether a pod is active and bound to a node that may be virtual."""
    return pod["spec"]["nodeName"].startswith(VIRTUAL_NODE_PREFIX) and not is_pod_terminal(pod)

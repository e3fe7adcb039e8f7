"""Reconciler of ClusterBindings: from a kubeconfig in a Secret to a running syncer, and back.

    initialize           add the finalizer, set the phase Pending
    spec                 check that it is valid and that its clusterID is unique
    kubeconfig           check that it exists, is allowed and is safe
    physical cluster     check that it responds, is the bound cluster, is bound once, and grants all permissions
    syncer               apply all objects of the syncer's templates

The first failed stage determines the error: the phase is Failed, a condition and an event name the reason, and the
binding waits for a change that could help.  A binding that was accepted before keeps its syncer while its cluster is
unreachable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, UNBIND_GRACE_SECONDS, is_tenant
from tapestry.apis.mount_labels import is_taken, taken_message
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.permissions import IDENTITY_NAMESPACE, OPTIONAL_FEATURES
from tapestry.controller import Informer, Manager, Result, Terminal
from tapestry.controller.store import Indexer
from tapestry.kube.conditions import find_condition, new_condition
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, TransportError
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.resources import NAMESPACES
from tapestry.kube.times import parse_time, timestamp
from tapestry.manager.admission_policies import admission_policies, restricted_condition
from tapestry.manager.config import BindingsConfig
from tapestry.manager.connectivity import ConnectivityChecker, ProbeResult, cached_secret
from tapestry.manager.grants import SyncerGrants
from tapestry.manager.leftovers import leftover_message, record_leftover, remove_syncer, remove_virtual_nodes
from tapestry.manager.status import PERMITTED, binding_conditions, binding_status, status_events
from tapestry.manager.syncer_credentials import SyncerCredentials
from tapestry.manager.syncers import SyncerDeployer, binding_uid_of
from tapestry.manager.validation import BindingError, RetryPolicy, check_identity, validated_spec

IDENTITY = NAMESPACES, IDENTITY_NAMESPACE
RECHECK_SECONDS = 300.0
"""Interval of reconciles without a change."""
FAILED_RECHECK_INTERVAL = 30.0
"""Interval of reconciles of a binding with an error that is fixed where we do not watch."""
STUCK_SECONDS = 60.0
"""Seconds after its grace period at which a deleted binding counts as stuck."""
CLEANUP_POLL_INTERVAL = 5.0
"""Interval of reconciles while objects of a deleted binding still exist."""
KEEP_SYNCER_REASONS = frozenset({"ConnectivityFailed", "PermissionsMissing"})
"""Errors of the cluster, which do not affect the syncer.  Errors of the binding may mean that its syncer is wrong."""


@dataclass(frozen=True)
class BindingReconciler:
    """Keep one syncer deployed for each ClusterBinding.  Keys are binding names."""

    config: BindingsConfig
    manager: Manager
    bindings: Informer
    secrets: Sequence[Informer]
    policies: Informer
    connectivity_checker: ConnectivityChecker
    deployer: SyncerDeployer
    credentials: SyncerCredentials | None
    """Issuer of credentials, if syncers run in another cluster."""
    grants: SyncerGrants
    restrictions: Sequence[Informer]
    """Informers of the installed admission policies and their bindings."""
    own_label: list[str] = field(default_factory=list)
    """Label value of this virtual cluster, once it was read."""

    async def reconcile(self, name: str) -> Result | None:
        binding = self.bindings.store.get(name)
        if binding is None:
            self.connectivity_checker.forget(name)
            return None
        if is_tenant(binding):
            return None  # the process that holds the plane runs its syncer
        return (
            await self.unbind(binding)
            if is_deleting(binding)
            else await self.bind(await self.ensure_initialized(binding))
        )

    async def ensure_initialized(self, binding: Object) -> Object:
        """Add the finalizer and the initial status, so that nothing created for the binding can be orphaned."""
        finalizers = finalizers_of(binding)
        if keys.MANAGER_FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, keys.MANAGER_FINALIZER]}}
            binding = await self.manager.client.patch(CLUSTER_BINDINGS, binding, patch)
        if value_at(binding, "status", "phase") is None:
            initial = new_condition("Ready", False, "Initializing", "the binding is not reconciled yet")
            binding = await self.update_status(binding, "Pending", [initial])
        return binding

    async def bind(self, binding: Object) -> Result | None:
        error, probe, deployment = None, None, None
        try:
            probe = await self.probe_cluster(binding)
            check_cluster(binding, probe, self.others(binding), await self.virtual_cluster())
        except BindingError as raised:
            error = raised
        if error is None or (error.reason in KEEP_SYNCER_REASONS and is_accepted(binding)):
            try:
                deployment = await self.ensure_syncer(binding)
            except BindingError as raised:
                error = error or raised
        now = self.manager.now()
        conditions = [*binding_conditions(error, probe, deployment, now), *self.no_policy_condition(binding, error)]
        if deployment is not None and (autoscaled := await self.deployer.ensure_autoscaler(binding, deployment)):
            conditions.append(autoscaled)
        conditions.append(self.restricted_condition())
        facts = status_facts(probe) if error is None and probe is not None else {}
        await self.update_status(binding, "Failed" if error else "Ready", conditions, facts)
        if is_accepted(binding) and "identity" in facts and [facts["identity"]] != identity_of(binding):
            self.manager.events.normal(binding, "IdentityApproved", f"the binding is now to {facts['identity']}")
        return reconcile_result(error, probe)

    async def virtual_cluster(self) -> str:
        """Return the label value of the virtual cluster.  It never changes."""
        if not self.own_label:
            self.own_label.append(virtual_cluster_label(uid_of(await self.manager.client.get(*IDENTITY))))
        return self.own_label[0]

    async def probe_cluster(self, binding: Object) -> ProbeResult:
        """Validate the binding and probe its cluster.  Raise BindingError if that fails."""
        spec = validated_spec(binding, self.others(binding), self.config.secret_namespaces)
        secret = cached_secret(self.secrets, secret_key_of(binding))
        return await self.connectivity_checker.check(name_of(binding), secret, spec)

    async def ensure_syncer(self, binding: Object) -> Object:
        """Deploy the binding's syncer and return its Deployment.

        Before creating objects, read the binding from the server: if it exists only in our cache, the new objects would
        never be cleaned up.
        """
        manifests = self.deployer.desired_manifests(binding)
        if self.deployer.has_missing(manifests):
            live = await self.manager.client.get(CLUSTER_BINDINGS, name_of(binding))
            if is_relevant_change(binding, live):
                raise Conflict(409, "Conflict", f"ClusterBinding {name_of(binding)} has changed since it was read")
        deployment = await self.deployer.ensure(binding, manifests)
        if self.credentials is not None:
            await self.credentials.ensure(binding, value_at(binding, "spec", "clusterID"))
        return deployment

    def others(self, binding: Object) -> list[Object]:
        return [each for each in self.bindings.store.list() if name_of(each) != name_of(binding)]

    def no_policy_condition(self, binding: Object, error: BindingError | None) -> Iterable[Object]:
        """Report a bound cluster without a policy from the start.  Later the syncer maintains this condition."""
        conditions = value_at(binding, "status", "conditions", default=[])
        names = {name_of(binding), value_at(binding, "spec", "clusterID")}
        is_named = any(value_at(each, "spec", "cluster") in names for each in self.policies.store.list())
        if error is None and not is_named and find_condition(conditions, "Leasing") is None:
            yield new_condition("Leasing", False, "NoPolicy", "no ResourceLeasingPolicy names this binding")

    def restricted_condition(self) -> Object:
        """Report whether admission policies restrict the accounts of syncers and of the manager."""
        expected = admission_policies(self.config.namespace, self.config.kubeconfig_namespaces)
        return restricted_condition(expected, *(informer.store.list() for informer in self.restrictions))

    async def unbind(self, binding: Object) -> Result | None:
        """Wait for the syncer to clean up, unless unbinding is forced.  Then delete it and remove the finalizers."""
        finalizers = finalizers_of(binding)
        if keys.MANAGER_FINALIZER not in finalizers:
            return None
        is_forced = annotations_of(binding).get(keys.FORCE_UNBIND) == "true"
        if keys.SYNCER_FINALIZER in finalizers and not is_forced:
            return await self.wait_for_syncer(binding)
        deleting = new_condition("Ready", False, "CleanupInProgress", "the objects of the binding are being deleted")
        binding = await self.update_status(binding, "Deleting", [deleting])
        if self.credentials is not None:
            await self.credentials.remove(binding)
        if not await remove_syncer(self.deployer, binding) or not await self.grants.remove(binding):
            return Result(requeue_after=CLEANUP_POLL_INTERVAL)
        if is_forced and not await self.force_cleanup(binding):
            return Result(requeue_after=CLEANUP_POLL_INTERVAL)
        ours = (keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)
        patch = {"metadata": {"finalizers": [each for each in finalizers if each not in ours]}}
        await self.manager.client.patch(CLUSTER_BINDINGS, binding, patch)
        outcome = f"by force; {leftover_message(binding, ())}" if is_forced else "all of its objects are deleted"
        self.manager.events.normal(binding, "Deleted", f"the binding is deleted: {outcome}")
        return None

    async def wait_for_syncer(self, binding: Object) -> Result:
        """Ensure that a syncer runs to clean up, and report that the binding waits for it."""
        message, seconds = "waiting for the syncer to clean up", self.seconds_to_stuck(binding)
        if seconds <= 0:
            message += f"; if it cannot, annotate the binding with {keys.FORCE_UNBIND}=true"
        if is_accepted(binding):
            try:
                await self.ensure_syncer(binding)
            except (BindingError, InvalidSpec) as error:
                message = f"{message}; the syncer cannot be deployed: {error}"
        await self.update_status(binding, "Deleting", [new_condition("Ready", False, "WaitingSyncerCleanup", message)])
        return Result(requeue_after=min(seconds, RECHECK_SECONDS) if seconds > 0 else RECHECK_SECONDS)

    def seconds_to_stuck(self, binding: Object) -> float:
        """Return the seconds until a deletion counts as stuck.  After that, the status suggests a forced unbinding."""
        grace = value_at(binding, "spec", "unbindGraceSeconds", default=UNBIND_GRACE_SECONDS)
        due = parse_time(binding["metadata"]["deletionTimestamp"]) + timedelta(seconds=grace + STUCK_SECONDS)
        return (due - self.manager.now()).total_seconds()

    async def force_cleanup(self, binding: Object) -> bool:
        """Delete the binding's virtual nodes and record what may be left.  Return whether the nodes are deleted."""

        def report_pods(pods: Sequence[Object]) -> None:
            self.manager.events.warning(binding, "LeftBehind", leftover_message(binding, pods))

        if not await remove_virtual_nodes(self.manager.client, binding, report_pods):
            return False
        await record_leftover(self.manager.client, cached_secret(self.secrets, secret_key_of(binding)), binding)
        return True

    async def update_status(
        self, binding: Object, phase: str, conditions: Iterable[Object], facts: Object | None = None
    ) -> Object:
        """Write the manager's part of the status if it changed, and record events for the changes."""
        status = {**binding_status(binding, phase, conditions, self.manager.now()), **(facts or {})}
        updated = await self.manager.client.converge(CLUSTER_BINDINGS, binding, {"status": status})
        for is_warning, reason, message in status_events(binding, updated):
            record = self.manager.events.warning if is_warning else self.manager.events.normal
            record(updated, reason, message)
        return updated

    # -- mapping of changes to bindings

    def affected_bindings(self, binding: Object) -> Iterable[str]:
        """Return the binding and its rivals: those with the same clusterID or the same cluster."""
        store = self.bindings.store
        rivals = [other for each in cluster_id_of(binding) for other in store.by("clusterID", each)]
        if identities := identity_of(binding):
            rivals += [*store.by("identity", *identities), *store.by("reason", "DuplicateCluster")]
        return {name_of(binding), *map(name_of, rivals)}

    def bindings_of_secret(self, secret: Object) -> Iterable[str]:
        key = f"{namespace_of(secret)}/{name_of(secret)}"
        return [name_of(each) for each in self.bindings.store.by("secret", key)]

    def bindings_of_object(self, obj: Object) -> Iterable[str]:
        return [name_of(each) for uid in binding_uid_of(obj) for each in self.bindings.store.by("uid", uid)]

    def bindings_of_policy(self, policy: Object) -> Iterable[str]:
        cluster = str(value_at(policy, "spec", "cluster", default=""))
        return {cluster, *(name_of(each) for each in self.bindings.store.by("clusterID", cluster))}


def check_cluster(binding: Object, probe: ProbeResult, others: Iterable[Object], virtual_cluster: str) -> None:
    """Raise BindingError if a reachable cluster may not be used.

    Missing permissions that only volumes or usage need are not an error: everything else works without them.
    """
    if probe.identity is not None:
        check_identity(binding, probe.identity, others)
    if is_taken(probe.mount, virtual_cluster):
        message = taken_message(str(value_at(binding, "spec", "mountNamespace")), virtual_cluster)
        raise BindingError(keys.MOUNT_NAMESPACE_TAKEN, message, condition=PERMITTED, retry=RetryPolicy.ON_RECHECK)
    missing = [permission for permission in probe.missing if permission.resource not in OPTIONAL_FEATURES]
    if missing:
        permissions = ", ".join(map(str, missing))
        message = f"the kubeconfig does not grant: {permissions}"
        raise BindingError("PermissionsMissing", message, condition=PERMITTED, retry=RetryPolicy.ON_RECHECK)


def status_facts(probe: ProbeResult) -> Object:
    """Return the status fields of a successful probe: identity of the cluster and expiry of the credentials."""
    expires = timestamp(probe.expires) if probe.expires else None
    return {"identity": probe.identity, "credentialsExpire": expires}


def reconcile_result(error: BindingError | None, probe: ProbeResult | None) -> Result:
    """Return the result of a reconcile whose status is written, or raise for a retry with backoff."""
    if error is not None and error.retry is RetryPolicy.ON_CHANGE:
        raise Terminal(error.reason, error.message) from error
    if error is not None and error.retry is RetryPolicy.BACKOFF:
        raise TransportError(error.message, maybe_sent=False) from error
    is_faulty = error is not None or (probe is not None and bool(probe.missing))
    return Result(requeue_after=FAILED_RECHECK_INTERVAL if is_faulty else RECHECK_SECONDS)


def is_accepted(binding: Object) -> bool:
    """Return whether the binding was ready once."""
    return value_at(binding, "status", "identity") is not None


def is_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Return whether more changed than the status fields that the syncer and the manager update regularly."""
    return old is None or new is None or relevant_fields(old) != relevant_fields(new)


def relevant_fields(binding: Object) -> list[object]:
    metadata, annotations = binding["metadata"], annotations_of(binding)
    return [
        *(metadata.get(field) for field in ("uid", "generation", "deletionTimestamp")),
        *(annotations.get(key) for key in (keys.FORCE_UNBIND, keys.APPROVE_IDENTITY)),
        finalizers_of(binding),
        identity_of(binding),
    ]


def finalizers_of(binding: Object) -> list[str]:
    finalizers: list[str] = binding["metadata"].get("finalizers") or []
    return finalizers


def cluster_id_of(binding: Object) -> list[str]:
    cluster_id = value_at(binding, "spec", "clusterID")
    return [cluster_id] if isinstance(cluster_id, str) else []


def identity_of(binding: Object) -> list[str]:
    identity = value_at(binding, "status", "identity")
    return [identity] if isinstance(identity, str) else []


def secret_key_of(binding: Object) -> str:
    reference = value_at(binding, "spec", "secretRef", default={})
    return f"{reference.get('namespace')}/{reference.get('name')}"


def secret_keys_of(binding: Object) -> list[str]:
    return [secret_key_of(binding)]


def reason_of(binding: Object) -> list[str]:
    """Return the reason of the condition Ready."""
    ready = find_condition(value_at(binding, "status", "conditions"), "Ready")
    return [ready["reason"]] if ready else []


def uid_index(binding: Object) -> list[str]:
    return [uid_of(binding)]


INDEXERS: dict[str, Indexer] = {
    "uid": uid_index,
    "clusterID": cluster_id_of,
    "identity": identity_of,
    "secret": secret_keys_of,
    "reason": reason_of,
}

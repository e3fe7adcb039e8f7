"""ClusterBindings: from a kubeconfig in a Secret to a syncer at work, and back.

    only a spec          the finalizer, the phase Pending
    spec                 is it valid, and the only one of its clusterID?
    kubeconfig           is it allowed, there, harmless?
    physical cluster     does it answer, is it the one that was bound and bound once, does it grant every right?
    syncer               everything that it consists of, as the templates want it

What fails first is the binding's fault: the phase is Failed, a condition and an event say why, and it waits for what
could help.  A binding that was well before keeps its syncer when its cluster falls silent: then it is needed most.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import is_taken, taken_message
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.apis.permissions import IDENTITY_NAMESPACE, VOLUME_KINDS
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
from tapestry.manager.binding_errors import BindingError, RetryPolicy
from tapestry.manager.cleanup import leftover_message, remove_syncer, remove_virtual_nodes
from tapestry.manager.config import BindingsConfig
from tapestry.manager.connectivity import ConnectivityChecker, ProbeResult, cached_secret
from tapestry.manager.leftovers import record_leftover
from tapestry.manager.status import PERMITTED, binding_conditions, binding_status, status_events
from tapestry.manager.syncers import SyncerDeployer, binding_uid_of
from tapestry.manager.validation import check_identity, validated_spec

IDENTITY = NAMESPACES, IDENTITY_NAMESPACE
RECHECK_SECONDS = 300.0
"""How often a binding is looked at again when nothing of what we watch changes."""
FAILED_RECHECK_INTERVAL = 30.0
"""The same for one with a fault that is mended where we do not watch: whoever mends it is waiting."""
STUCK_SECONDS = 60.0
"""How long after its grace a binding may take to go before it counts as stuck."""
CLEANUP_POLL_INTERVAL = 5.0
"""How often a binding that goes is looked at while something of it is still there."""
KEEP_SYNCER_REASONS = frozenset({"ConnectivityFailed", "PermissionsMissing"})
"""Faults of a cluster; those of the binding itself say that its syncer may be the wrong one."""


@dataclass(frozen=True)
class BindingReconciler:
    """Keeps a syncer at work for each ClusterBinding; keyed by its name."""

    config: BindingsConfig
    manager: Manager
    bindings: Informer
    secrets: Sequence[Informer]
    policies: Informer
    connectivity_checker: ConnectivityChecker
    deployer: SyncerDeployer
    own_label: list[str] = field(default_factory=list)
    """The mark of this virtual cluster, once it was read."""

    async def reconcile(self, name: str) -> Result | None:
        binding = self.bindings.store.get(name)
        if binding is None:
            self.connectivity_checker.forget(name)
            return None
        return (
            await self.unbind(binding)
            if is_deleting(binding)
            else await self.bind(await self.ensure_initialized(binding))
        )

    async def ensure_initialized(self, binding: Object) -> Object:
        """The binding with our finalizer and a phase: before anything is made for it, it can no longer just vanish."""
        finalizers = finalizers_of(binding)
        if keys.MANAGER_FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, keys.MANAGER_FINALIZER]}}
            binding = await self.manager.client.patch(CLUSTER_BINDINGS, binding, patch)
        if value_at(binding, "status", "phase") is None:
            first = new_condition("Ready", False, "Initializing", "the binding has yet to be looked at")
            binding = await self.update_status(binding, "Pending", [first])
        return binding

    async def bind(self, binding: Object) -> Result | None:
        fault, finding, deployment = None, None, None
        try:
            finding = await self.probe_cluster(binding)
            check_cluster(binding, finding, self.others(binding), await self.virtual_cluster())
        except BindingError as caught:
            fault = caught
        if fault is None or (fault.reason in KEEP_SYNCER_REASONS and is_accepted(binding)):
            try:
                deployment = await self.ensure_syncer(binding)
            except BindingError as caught:
                fault = fault or caught
        now = self.manager.now()
        conditions = [*binding_conditions(fault, finding, deployment, now), *self.no_policy_condition(binding, fault)]
        facts = status_facts(finding) if fault is None and finding is not None else {}
        await self.update_status(binding, "Failed" if fault else "Ready", conditions, facts)
        if is_accepted(binding) and "identity" in facts and [facts["identity"]] != identity_of(binding):
            self.manager.events.normal(binding, "IdentityApproved", f"the binding is now to {facts['identity']}")
        return reconcile_result(fault, finding)

    async def virtual_cluster(self) -> str:
        """The virtual cluster as a label value; it never changes."""
        if not self.own_label:
            self.own_label.append(virtual_cluster_label(uid_of(await self.manager.client.get(*IDENTITY))))
        return self.own_label[0]

    async def probe_cluster(self, binding: Object) -> ProbeResult:
        """What the cluster behind the binding answers; the Fault of whatever is in the way."""
        spec = validated_spec(binding, self.others(binding), self.config.secret_namespaces)
        secret = cached_secret(self.secrets, secret_key_of(binding))
        return await self.connectivity_checker.check(name_of(binding), secret, spec)

    async def ensure_syncer(self, binding: Object) -> Object:
        """The Deployment of the binding's syncer, with all that belongs to it.

        Before anything is made the binding is read live: for one that only our cache still has, nobody would clean up.
        """
        wanted = self.deployer.desired_manifests(binding)
        if self.deployer.has_missing(wanted):
            live = await self.manager.client.get(CLUSTER_BINDINGS, name_of(binding))
            if is_relevant_change(binding, live):
                raise Conflict(409, "Conflict", f"ClusterBinding {name_of(binding)} has changed since it was read")
        return await self.deployer.ensure(binding, wanted)

    def others(self, binding: Object) -> list[Object]:
        return [each for each in self.bindings.store.list() if name_of(each) != name_of(binding)]

    def no_policy_condition(self, binding: Object, error: BindingError | None) -> Iterable[Object]:
        """A bound cluster that nobody lends says so from the start; later on that is for its syncer to say."""
        conditions = value_at(binding, "status", "conditions", default=[])
        names = {name_of(binding), value_at(binding, "spec", "clusterID")}
        is_named = any(value_at(each, "spec", "cluster") in names for each in self.policies.store.list())
        if error is None and not is_named and find_condition(conditions, "Leasing") is None:
            yield new_condition("Leasing", False, "NoPolicy", "no ResourceLeasingPolicy names this binding")

    async def unbind(self, binding: Object) -> Result | None:
        """Wait for the syncer to clean up, unless that is hopeless; then remove it, and let the binding go."""
        finalizers = finalizers_of(binding)
        if keys.MANAGER_FINALIZER not in finalizers:
            return None
        is_forced = annotations_of(binding).get(keys.FORCE_UNBIND) == "true"
        if keys.SYNCER_FINALIZER in finalizers and not is_forced:
            return await self.wait_for_syncer(binding)
        going = new_condition("Ready", False, "CleanupInProgress", "what was made for the binding is being removed")
        binding = await self.update_status(binding, "Deleting", [going])
        if not await remove_syncer(self.deployer, binding):
            return Result(requeue_after=CLEANUP_POLL_INTERVAL)
        if is_forced and not await self.force_cleanup(binding):
            return Result(requeue_after=CLEANUP_POLL_INTERVAL)
        ours = (keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)
        patch = {"metadata": {"finalizers": [each for each in finalizers if each not in ours]}}
        await self.manager.client.patch(CLUSTER_BINDINGS, binding, patch)
        how = f"by force; {leftover_message(binding, ())}" if is_forced else "nothing of it is left"
        self.manager.events.normal(binding, "Deleted", f"the binding is gone: {how}")
        return None

    async def wait_for_syncer(self, binding: Object) -> Result:
        """See to it that there is a syncer to clean up, and say that we wait for it."""
        message, seconds = "the syncer has yet to clean up", self.seconds_to_stuck(binding)
        if seconds <= 0:
            message += f"; if it never will, annotate with {keys.FORCE_UNBIND}=true"
        if is_accepted(binding):
            try:
                await self.ensure_syncer(binding)
            except (BindingError, InvalidSpec) as error:
                message = f"{message}; it cannot be started: {error}"
        await self.update_status(binding, "Deleting", [new_condition("Ready", False, "WaitingSyncerCleanup", message)])
        return Result(requeue_after=min(seconds, RECHECK_SECONDS) if seconds > 0 else RECHECK_SECONDS)

    def seconds_to_stuck(self, binding: Object) -> float:
        """How long a syncer that cleans up may still take; then force is worth a word."""
        grace = value_at(binding, "spec", "unbindGraceSeconds", default=MAX_GRACE_SECONDS)
        due = parse_time(binding["metadata"]["deletionTimestamp"]) + timedelta(seconds=grace + STUCK_SECONDS)
        return (due - self.manager.now()).total_seconds()

    async def force_cleanup(self, binding: Object) -> bool:
        """Whether nothing in the virtual cluster stands for the cluster any more; what it may have is remembered."""

        def tell(pods: Sequence[Object]) -> None:
            self.manager.events.warning(binding, "LeftBehind", leftover_message(binding, pods))

        if not await remove_virtual_nodes(self.manager.client, binding, tell):
            return False
        await record_leftover(self.manager.client, cached_secret(self.secrets, secret_key_of(binding)), binding)
        return True

    async def update_status(
        self, binding: Object, phase: str, conditions: Iterable[Object], facts: Object | None = None
    ) -> Object:
        """Write our part of the status, where it changed, and an event for what is new in it."""
        wanted = {**binding_status(binding, phase, conditions, self.manager.now()), **(facts or {})}
        told = await self.manager.client.converge(CLUSTER_BINDINGS, binding, {"status": wanted})
        for is_warning, reason, message in status_events(binding, told):
            record = self.manager.events.warning if is_warning else self.manager.events.normal
            record(told, reason, message)
        return told

    # -- whose business a change is

    def affected_bindings(self, binding: Object) -> Iterable[str]:
        """The binding, and those that want what it has: its clusterID, or the cluster that it is pinned to."""
        store = self.bindings.store
        rivals = [other for each in cluster_id_of(binding) for other in store.by("clusterID", each)]
        if identities := identity_of(binding):
            rivals += [*store.by("identity", *identities), *store.by("reason", "DuplicateCluster")]
        return {name_of(binding), *map(name_of, rivals)}

    def bindings_of_secret(self, secret: Object) -> Iterable[str]:
        """The bindings whose kubeconfig is in a Secret."""
        key = f"{namespace_of(secret)}/{name_of(secret)}"
        return [name_of(each) for each in self.bindings.store.by("secret", key)]

    def bindings_of_object(self, obj: Object) -> Iterable[str]:
        """The binding that an object was made for."""
        return [name_of(each) for uid in binding_uid_of(obj) for each in self.bindings.store.by("uid", uid)]

    def bindings_of_policy(self, policy: Object) -> Iterable[str]:
        """The bindings that a policy is about."""
        cluster = str(value_at(policy, "spec", "cluster", default=""))
        return {cluster, *(name_of(each) for each in self.bindings.store.by("clusterID", cluster))}


def check_cluster(binding: Object, probe: ProbeResult, others: Iterable[Object], virtual_cluster: str) -> None:
    """Raises the Fault of a cluster that answers, and yet may not be used.

    Rights that only volumes need are no reason: everything else works without them.
    """
    if probe.identity is not None:
        check_identity(binding, probe.identity, others)
    if is_taken(probe.mount, virtual_cluster):
        message = taken_message(str(value_at(binding, "spec", "mountNamespace")), virtual_cluster)
        raise BindingError(keys.MOUNT_NAMESPACE_TAKEN, message, condition=PERMITTED, retry=RetryPolicy.ON_RECHECK)
    missing = [right for right in probe.missing if right.resource not in VOLUME_KINDS]
    if missing:
        rights = ", ".join(map(str, missing))
        message = f"the kubeconfig does not grant: {rights}"
        raise BindingError("PermissionsMissing", message, condition=PERMITTED, retry=RetryPolicy.ON_RECHECK)


def status_facts(probe: ProbeResult) -> Object:
    """What the status keeps of a finding: which cluster this is, from now on, and how long the credentials last."""
    expires = timestamp(probe.expires) if probe.expires else None
    return {"identity": probe.identity, "credentialsExpire": expires}


def reconcile_result(error: BindingError | None, probe: ProbeResult | None) -> Result:
    """How a pass ends whose findings have been told."""
    if error is not None and error.retry is RetryPolicy.ON_CHANGE:
        raise Terminal(error.reason, error.message) from error
    if error is not None and error.retry is RetryPolicy.BACKOFF:
        raise TransportError(error.message, maybe_sent=False) from error
    is_faulty = error is not None or (probe is not None and bool(probe.missing))
    return Result(requeue_after=FAILED_RECHECK_INTERVAL if is_faulty else RECHECK_SECONDS)


def is_accepted(binding: Object) -> bool:
    """Whether everything about the binding was well once."""
    return value_at(binding, "status", "identity") is not None


def is_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Whether more changed than what the syncer and we write into the status all the time."""
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
    found: list[str] = binding["metadata"].get("finalizers") or []
    return found


def cluster_id_of(binding: Object) -> list[str]:
    found = value_at(binding, "spec", "clusterID")
    return [found] if isinstance(found, str) else []


def identity_of(binding: Object) -> list[str]:
    found = value_at(binding, "status", "identity")
    return [found] if isinstance(found, str) else []


def secret_key_of(binding: Object) -> str:
    reference = value_at(binding, "spec", "secretRef", default={})
    return f"{reference.get('namespace')}/{reference.get('name')}"


def secret_keys_of(binding: Object) -> list[str]:
    return [secret_key_of(binding)]


def reason_of(binding: Object) -> list[str]:
    """Why the binding is ready, or is not."""
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

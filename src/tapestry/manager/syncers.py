"""The objects that a syncer consists of, kept as the templates want them.

Everything of a binding's syncer carries the binding's UID as a label, which is how its changes find their way to the
binding and how it is found again when the templates are gone.  In the virtual cluster it is also owned by the binding.
An owner reference cannot lead to another cluster, so in one of its own, for syncers to run in, the label is all there
is; and only account and Deployment are made there: what the syncers may do here is for whoever gave them access.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, ClusterBindingSpec
from tapestry.apis.names import syncer_lease_name, syncer_name
from tapestry.apis.permissions import (
    SYNCER_KUBECONFIG,
    SYNCER_LEADER_ELECTION,
    SYNCER_ROLE,
    Placeholder,
    policy_rules,
    with_names,
)
from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.controller import Informer
from tapestry.kube.crds import decode_spec
from tapestry.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import (
    Object,
    is_deleting,
    is_owned_by,
    key_of,
    labels_of,
    name_of,
    owner_reference,
    uid_of,
    value_at,
)
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.resources import DEPLOYMENTS, SERVICE_ACCOUNTS, Resource
from tapestry.manager.binding_errors import BindingError, RetryPolicy
from tapestry.manager.config import BindingsConfig, SyncerSettings
from tapestry.manager.manifests import (
    KINDS,
    Manifest,
    Scope,
    TemplateError,
    Templates,
    Values,
    syncer_manifests,
    with_server_additions,
)

DEPLOYED_RESOURCES = (SERVICE_ACCOUNTS, DEPLOYMENTS)
"""What goes to the cluster where syncers run; the rest stays in the virtual cluster."""
KUBECONFIG_FOLDER = "/etc/tapestry/kubeconfig"

BY_BINDING = "binding"
"""The index of a cache by the UID of the binding."""


def load_templates(folder: Traversable) -> Templates:
    """The templates in a folder; raises OSError, or TemplateError where there are none."""
    found = {each.name: each.read_text("utf-8") for each in folder.iterdir() if each.name.endswith((".yaml", ".yml"))}
    if not found:
        raise TemplateError(f"{folder}: has no file that ends in .yaml")
    return found


def packaged_templates(name: str) -> Traversable:
    """The folder of our own templates for the syncer, or for the manager."""
    return files("tapestry.manager") / "templates" / name


@dataclass(frozen=True)
class SyncerDeployer:
    """Makes, mends and finds what runs the syncers."""

    config: BindingsConfig
    templates: Callable[[], Templates]
    """Read again each time: the folder may be a mounted ConfigMap."""
    clients: Mapping[Resource, Client]
    """Where each kind lives."""
    caches: Mapping[Scope, Informer]
    """Of each kind that is made, in each place where it may be."""
    is_remote: bool
    """Whether syncers run in another cluster than the bindings."""

    async def ensure(self, binding: Object, wanted: Sequence[Manifest]) -> Object:
        """Make everything as it should be, and remove what is no longer wanted; returns the Deployment.

        Writes nothing where all is well.  Raises a Fault that people have to see to.
        """
        current = [await self.apply_manifest(each, binding) for each in wanted]
        names = {each.key for each in wanted}
        for resource, obj in self.cached_objects(uid_of(binding)):
            if (resource, key_of(obj)) not in names and not is_deleting(obj):
                await self.remove(resource, obj)
        return next(obj for each, obj in zip(wanted, current, strict=True) if each.resource is DEPLOYMENTS)

    def has_missing(self, wanted: Sequence[Manifest]) -> bool:
        """Whether something has to be made, as far as the caches know."""
        return any(self.cached_object(each) is None for each in wanted)

    def cached_object(self, manifest: Manifest) -> Object | None:
        namespace = manifest.object["metadata"].get("namespace")
        return self.caches[manifest.resource, namespace].store.get(key_of(manifest.object))

    def desired_manifests(self, binding: Object) -> list[Manifest]:
        """What the syncer of a binding consists of; raises a Fault, or InvalidSpec."""
        spec = decode_spec(CLUSTER_BINDING, binding)
        try:
            found = syncer_manifests(self.templates(), template_values(binding, spec, self.config), self.caches)
        except (TemplateError, OSError) as error:
            raise syncer_error(str(error)) from error
        return [self.with_owner_metadata(each, binding, spec) for each in found]

    def with_owner_metadata(self, manifest: Manifest, binding: Object, spec: ClusterBindingSpec) -> Manifest:
        """The object with what says whose it is; a template has no say in that."""
        metadata = manifest.object["metadata"]
        labels = {
            **(metadata.get("labels") or {}),
            keys.MANAGED_BY: keys.TAPESTRY,
            keys.CLUSTER_BINDING: safe_label_value(name_of(binding)),
            keys.CLUSTER_BINDING_UID: uid_of(binding),
            keys.PHYSICAL_CLUSTER_ID: spec.cluster_id,
        }
        marks: Object = {"labels": labels}
        if not self.is_remote:
            marks["ownerReferences"] = [owner_reference(binding, block_deletion=False)]
        return Manifest(manifest.resource, {**manifest.object, "metadata": {**metadata, **marks}})

    async def apply_manifest(self, manifest: Manifest, binding: Object) -> Object:
        resource, wanted = manifest.resource, manifest.object
        client, namespace = self.clients[resource], wanted["metadata"].get("namespace")
        current = self.cached_object(manifest)
        try:
            if current is None:
                try:
                    return await client.create(resource, wanted)
                except AlreadyExists:  # the cache has yet to see it, or does not show it: it is not labelled as ours
                    current = await client.get(resource, name_of(wanted), namespace)
                except NotFound as error:
                    raise syncer_error(f"{error}; is there a namespace {namespace}?") from error
            if not self.is_ours(current, binding):
                whose = f"{resource.kind} {key_of(wanted)} does not belong to this binding"
                raise syncer_error(f"{whose}; delete it, or make the binding anew with another clusterID", "NameTaken")
            return await client.converge(resource, current, with_server_additions(wanted, current))
        except (Invalid, Forbidden, BadRequest) as error:
            raise syncer_error(str(error)) from error

    def is_ours(self, obj: Object, binding: Object) -> bool:
        if self.is_remote:
            return labels_of(obj).get(keys.CLUSTER_BINDING_UID) == uid_of(binding)
        return is_owned_by(obj, binding)

    def cached_objects(self, uid: str) -> list[tuple[Resource, Object]]:
        """What there is of a binding's syncer, as far as the caches know."""
        return [
            (resource, obj)
            for (resource, _), informer in self.caches.items()
            for obj in informer.store.by(BY_BINDING, uid)
        ]

    async def live_objects(self, binding: Object) -> list[tuple[Resource, Object]]:
        """What there is of a binding's syncer, asked anew; by its label, and a Deployment also by its usual name."""
        found = [
            (resource, obj)
            for resource, namespace in self.caches
            for obj in await self.clients[resource].list(
                resource, namespace, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
            )
        ]
        usual = syncer_name(value_at(binding, "spec", "clusterID", default=""))
        if all((resource, name_of(obj)) != (DEPLOYMENTS, usual) for resource, obj in found):
            obj = await self.clients[DEPLOYMENTS].find(DEPLOYMENTS, usual, self.config.namespace)
            if obj is not None and self.is_ours(obj, binding):
                found.append((DEPLOYMENTS, obj))
        return found

    async def remove(self, resource: Resource, obj: Object) -> None:
        await self.clients[resource].delete_if_exists(resource, obj, propagation=Propagation.BACKGROUND)


def syncer_error(message: str, reason: str = "SyncerFailed") -> BindingError:
    """Tried again now and then: a folder or a stranger's object may change where we do not watch."""
    return BindingError(reason, message, condition="SyncerReady", retry=RetryPolicy.ON_RECHECK)


def binding_uid_of(obj: Object) -> list[str]:
    uid = labels_of(obj).get(keys.CLUSTER_BINDING_UID)
    return [uid] if uid else []


def scopes(config: BindingsConfig) -> list[Scope]:
    """The kinds that are made, and the places where each may be."""
    found: list[Scope] = []
    for resource in DEPLOYED_RESOURCES if config.deploy_kubeconfig else KINDS:
        if not resource.namespaced:
            found.append((resource, None))
        elif resource in DEPLOYED_RESOURCES:
            found.append((resource, config.namespace))
        else:
            found += [(resource, namespace) for namespace in sorted(config.secret_namespaces)]
    return found


def template_values(binding: Object, spec: ClusterBindingSpec, config: BindingsConfig) -> Values:
    """What the placeholders of a template stand for."""
    name, settings = name_of(binding), config.syncer
    places = {
        Placeholder.MANAGER_NAMESPACE: config.namespace,
        Placeholder.SYNCER_LEASE: syncer_lease_name(name),
        Placeholder.KUBECONFIG_NAMESPACE: spec.secret_ref.namespace,
        Placeholder.KUBECONFIG_SECRET: spec.secret_ref.name,
    }
    return {
        "name": syncer_name(spec.cluster_id),
        "namespace": config.namespace,
        "bindingName": name,
        "bindingUID": uid_of(binding),
        "clusterID": spec.cluster_id,
        "secretName": spec.secret_ref.name,
        "secretNamespace": spec.secret_ref.namespace,
        "kubeconfigNamespaces": ",".join(sorted(config.secret_namespaces)),
        "clusterRole": SYNCER_ROLE,
        "homeRules": policy_rules(with_names(SYNCER_LEADER_ELECTION, places)),
        "kubeconfigRules": policy_rules(with_names(SYNCER_KUBECONFIG, places)),
        "image": settings.image,
        "replicas": settings.replicas,
        "resources": canonical_resources(settings),
        "priorityClassName": settings.priority_class_name or None,
        "loopbackArgs": ["--allow-loopback"] if config.allow_loopback else None,
        "extraArgs": settings.args,
        **kubeconfig_values(settings.kubeconfig_secret),
    }


def canonical_resources(settings: SyncerSettings) -> dict[str, dict[str, str]]:
    """Requests and limits as a server writes them, so that what it shows equals what we want."""
    return {
        part: {name: str(parse_quantity(amount)) for name, amount in amounts.items()}
        for part, amounts in settings.resources.items()
    }


def kubeconfig_values(secret: str) -> dict[str, Any]:
    """How a syncer that runs elsewhere gets at its kubeconfig for the virtual cluster."""
    if not secret:
        return {"kubeconfigArgs": None, "kubeconfigMounts": None, "kubeconfigVolumes": None}
    return {
        "kubeconfigArgs": [f"--kubeconfig={KUBECONFIG_FOLDER}/kubeconfig"],
        "kubeconfigMounts": [{"name": "kubeconfig", "mountPath": KUBECONFIG_FOLDER, "readOnly": True}],
        "kubeconfigVolumes": [{"name": "kubeconfig", "secret": {"secretName": secret}}],
    }

"""Deployment of syncers from templates.

All objects of a syncer carry the UID of the binding as a label.  The label maps changes to the binding, and finds the
objects when the templates are missing.  In the virtual cluster the binding is also the owner.  An owner reference
cannot lead to another cluster, so there the label is the only link.  There the manager creates only the Deployment, its
disruption budget and the credentials (`syncer_credentials`).  The account and its permissions are in the virtual
cluster.
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
    SYNCER_SERVING_SECRET,
    Placeholder,
    policy_rules,
    with_names,
)
from tapestry.apis.serving_certificates import serving_secret_name
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
from tapestry.kube.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, SERVICE_ACCOUNTS, SERVICES, Resource
from tapestry.kube.schemas import to_unstructured
from tapestry.manager.autoscaling import ensure_autoscaler
from tapestry.manager.config import PROFILES, BindingsConfig, ContainerResources
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
from tapestry.manager.validation import BindingError, RetryPolicy

DEPLOYED_RESOURCES = (DISRUPTION_BUDGETS, DEPLOYMENTS)
"""Resources in the cluster that syncers run in.  All others are in the virtual cluster."""
KUBECONFIG_FOLDER = "/etc/tapestry/kubeconfig"

BY_BINDING = "binding"
"""Name of the cache index by the UID of the binding."""


def load_templates(folder: Traversable) -> Templates:
    """Return the templates in a folder.  Raise OSError, or TemplateError if there are none."""
    paths = [path for path in folder.iterdir() if path.name.endswith((".yaml", ".yml"))]
    templates = {path.name: path.read_text("utf-8") for path in sorted(paths, key=lambda path: path.name)}
    if not templates:
        raise TemplateError(f"{folder}: contains no .yaml file")
    return templates


def packaged_templates(name: str) -> Traversable:
    return files("tapestry.manager") / "templates" / name


@dataclass(frozen=True)
class SyncerDeployer:
    """Create, update and find the objects of syncers."""

    config: BindingsConfig
    templates: Callable[[], Templates]
    """Reader of the templates, called each time because the folder may be a mounted ConfigMap."""
    clients: Mapping[Resource, Client]
    caches: Mapping[Scope, Informer]
    """Informers of each resource and namespace."""
    is_remote: bool
    """True if syncers run in another cluster than the bindings."""

    async def ensure(self, binding: Object, desired: Sequence[Manifest]) -> Object:
        """Apply all manifests, delete objects that are no longer wanted, and return the Deployment.

        Write nothing if all is as desired.  Raise BindingError for problems that users must fix.
        """
        current = [await self.apply_manifest(each, binding) for each in desired]
        names = {each.key for each in desired}
        for resource, obj in self.cached_objects(uid_of(binding)):
            if (resource, key_of(obj)) not in names and not is_deleting(obj):
                await self.remove(resource, obj)
        return next(obj for each, obj in zip(desired, current, strict=True) if each.resource is DEPLOYMENTS)

    async def ensure_autoscaler(self, binding: Object, deployment: Object) -> Object | None:
        """Apply what the binding says about autoscaling.  Return the condition that reports it, if any."""
        spec = decode_spec(CLUSTER_BINDING, binding)
        return await ensure_autoscaler(self.clients[DEPLOYMENTS], binding, spec, deployment)

    def has_missing(self, desired: Sequence[Manifest]) -> bool:
        """Return whether an object is missing in the caches."""
        return any(self.cached_object(each) is None for each in desired)

    def cached_object(self, manifest: Manifest) -> Object | None:
        namespace = manifest.object["metadata"].get("namespace")
        return self.caches[manifest.resource, namespace].store.get(key_of(manifest.object))

    def desired_manifests(self, binding: Object) -> list[Manifest]:
        """Return the manifests of a binding's syncer.  Raise BindingError or InvalidSpec."""
        spec = decode_spec(CLUSTER_BINDING, binding)
        try:
            manifests = syncer_manifests(self.templates(), template_values(binding, spec, self.config), self.caches)
        except (TemplateError, OSError) as error:
            raise syncer_error(str(error)) from error
        wanted = [each for each in manifests if each.resource is not SERVICES or self.config.syncer.kubelet_service]
        return [self.with_owner_metadata(each, binding, spec) for each in wanted]

    def with_owner_metadata(self, manifest: Manifest, binding: Object, spec: ClusterBindingSpec) -> Manifest:
        """Return the object with owner labels and references, which override the template."""
        metadata = manifest.object["metadata"]
        labels = {
            **(metadata.get("labels") or {}),
            keys.MANAGED_BY: keys.TAPESTRY,
            keys.CLUSTER_BINDING: safe_label_value(name_of(binding)),
            keys.CLUSTER_BINDING_UID: uid_of(binding),
            keys.PHYSICAL_CLUSTER_ID: spec.cluster_id,
        }
        owner_metadata: Object = {"labels": labels}
        if not self.is_elsewhere(manifest.resource):
            owner_metadata["ownerReferences"] = [owner_reference(binding, block_deletion=False)]
        return Manifest(manifest.resource, {**manifest.object, "metadata": {**metadata, **owner_metadata}})

    async def apply_manifest(self, manifest: Manifest, binding: Object) -> Object:
        resource, desired = manifest.resource, manifest.object
        client, namespace = self.clients[resource], desired["metadata"].get("namespace")
        current = self.cached_object(manifest)
        try:
            if current is None:
                try:
                    return await client.create(resource, desired)
                except AlreadyExists:  # the cache lags, or the object lacks our labels
                    current = await client.get(resource, name_of(desired), namespace)
                except NotFound as error:
                    raise syncer_error(f"{error}; does the namespace {namespace} exist?") from error
            if not self.is_ours(resource, current, binding):
                problem = f"{resource.kind} {key_of(desired)} does not belong to this binding"
                raise syncer_error(f"{problem}; delete it, or recreate the binding with another clusterID", "NameTaken")
            if resource is DEPLOYMENTS and value_at(binding, "spec", "syncer", "replicas") is None:
                desired = without_replicas(desired)
            return await client.converge(resource, current, with_server_additions(desired, current))
        except (Invalid, Forbidden, BadRequest) as error:
            raise syncer_error(str(error)) from error

    def is_elsewhere(self, resource: Resource) -> bool:
        """Return whether objects of a resource are in another cluster than the binding."""
        return self.is_remote and resource in DEPLOYED_RESOURCES

    def is_ours(self, resource: Resource, obj: Object, binding: Object) -> bool:
        if self.is_elsewhere(resource):
            return labels_of(obj).get(keys.CLUSTER_BINDING_UID) == uid_of(binding)
        return is_owned_by(obj, binding)

    def cached_objects(self, uid: str) -> list[tuple[Resource, Object]]:
        return [
            (resource, obj)
            for (resource, _), informer in self.caches.items()
            for obj in informer.store.by(BY_BINDING, uid)
        ]

    async def live_objects(self, binding: Object) -> list[tuple[Resource, Object]]:
        """Return the objects of a binding's syncer from the server, by label, and the Deployment also by name."""
        objects = [
            (resource, obj)
            for resource, namespace in self.caches
            for obj in await self.clients[resource].list(
                resource, namespace, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
            )
        ]
        name = syncer_name(value_at(binding, "spec", "clusterID", default=""))
        if all((resource, name_of(obj)) != (DEPLOYMENTS, name) for resource, obj in objects):
            obj = await self.clients[DEPLOYMENTS].find(DEPLOYMENTS, name, self.config.namespace)
            if obj is not None and self.is_ours(DEPLOYMENTS, obj, binding):
                objects.append((DEPLOYMENTS, obj))
        return objects

    async def remove(self, resource: Resource, obj: Object) -> None:
        await self.clients[resource].delete_if_exists(resource, obj, propagation=Propagation.BACKGROUND)


def syncer_error(message: str, reason: str = "SyncerFailed") -> BindingError:
    """Return an error that is retried periodically, because its cause may change where we do not watch."""
    return BindingError(reason, message, condition="SyncerReady", retry=RetryPolicy.ON_RECHECK)


def without_replicas(deployment: Object) -> Object:
    """Return the Deployment without `replicas`, which other clients may set through `scale`."""
    spec = {name: value for name, value in deployment["spec"].items() if name != "replicas"}
    return {**deployment, "spec": spec}


def binding_uid_of(obj: Object) -> list[str]:
    uid = labels_of(obj).get(keys.CLUSTER_BINDING_UID)
    return [uid] if uid else []


def scopes(config: BindingsConfig) -> list[Scope]:
    """Return the resources that are deployed and the namespaces that each may be in."""
    allowed: list[Scope] = []
    for resource in KINDS:
        if not resource.namespaced:
            allowed.append((resource, None))
        elif resource in (SERVICE_ACCOUNTS, *DEPLOYED_RESOURCES, SERVICES):
            allowed.append((resource, config.namespace))
        else:
            allowed += [(resource, namespace) for namespace in sorted(config.secret_namespaces)]
    return allowed


def template_values(binding: Object, spec: ClusterBindingSpec, config: BindingsConfig) -> Values:
    name, settings, pods = name_of(binding), config.syncer, spec.syncer
    syncer, is_remote = syncer_name(spec.cluster_id), bool(config.deploy_kubeconfig)
    secret = serving_secret_name(syncer)
    places = {
        Placeholder.MANAGER_NAMESPACE: config.namespace,
        Placeholder.SYNCER_LEASE: syncer_lease_name(name),
        Placeholder.KUBECONFIG_NAMESPACE: spec.kubeconfig_secret.namespace,
        Placeholder.KUBECONFIG_SECRET: spec.kubeconfig_secret.name,
        Placeholder.SERVING_SECRET: secret,
    }
    return {
        "name": syncer,
        "namespace": config.namespace,
        "bindingName": name,
        "bindingUID": uid_of(binding),
        "clusterID": spec.cluster_id,
        "secretName": spec.kubeconfig_secret.name,
        "secretNamespace": spec.kubeconfig_secret.namespace,
        "kubeconfigNamespaces": ",".join(sorted(config.secret_namespaces)),
        "clusterRole": SYNCER_ROLE,
        "homeRules": policy_rules(with_names((*SYNCER_LEADER_ELECTION, *SYNCER_SERVING_SECRET), places)),
        "kubeletService": None if is_remote or not settings.kubelet_service else f"{config.namespace}/{syncer}",
        "servingSecret": None if is_remote else f"{config.namespace}/{secret}",
        "kubeconfigRules": policy_rules(with_names(SYNCER_KUBECONFIG, places)),
        "image": pods.image or settings.image,
        "replicas": settings.replicas if pods.replicas is None else pods.replicas,
        "resources": canonical_resources(syncer_resources(spec, settings.resources)),
        "priorityClassName": settings.priority_class_name or None,
        "imagePullSecrets": [{"name": each} for each in settings.image_pull_secrets] or None,
        "nodeSelector": pods.node_selector or None,
        "tolerations": [tolerated(to_unstructured(each)) for each in pods.tolerations],
        "loopbackArgs": ["--allow-loopback"] if config.allow_loopback else None,
        "extraArgs": [*settings.args, *pods.args],
        **account_values(syncer_name(spec.cluster_id), is_remote=bool(config.deploy_kubeconfig)),
    }


def tolerated(toleration: Object) -> Object:
    """Return a toleration without empty fields, as the server stores it."""
    return {name: value for name, value in toleration.items() if value}


def syncer_resources(spec: ClusterBindingSpec, default: ContainerResources) -> ContainerResources:
    """Return the resources of a syncer: those of its binding, of the binding's profile, or the default."""
    pods = spec.syncer
    if pods.resources is not None:
        return {"requests": pods.resources.requests, "limits": pods.resources.limits}
    return PROFILES[pods.profile] if pods.profile is not None else default


def canonical_resources(resources: ContainerResources) -> ContainerResources:
    """Return requests and limits in canonical form, so that they compare equal to the server's."""
    return {
        part: {name: str(parse_quantity(amount)) for name, amount in amounts.items()}
        for part, amounts in resources.items()
        if amounts
    }


def account_values(name: str, *, is_remote: bool) -> dict[str, Any]:
    """Return how a syncer gets the credentials of its account: from its pod, or in another cluster from a Secret."""
    if not is_remote:
        names = ("automountToken", "kubeconfigArgs", "kubeconfigMounts", "kubeconfigVolumes")
        return {"serviceAccountName": name, **dict.fromkeys(names)}
    return {
        "serviceAccountName": None,
        "automountToken": False,
        "kubeconfigArgs": [f"--kubeconfig={KUBECONFIG_FOLDER}/kubeconfig"],
        "kubeconfigMounts": [{"name": "kubeconfig", "mountPath": KUBECONFIG_FOLDER, "readOnly": True}],
        "kubeconfigVolumes": [{"name": "kubeconfig", "secret": {"secretName": name}}],
    }

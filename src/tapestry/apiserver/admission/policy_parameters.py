"""Parameters of admission policies: the objects that a binding names or selects."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object
from tapestry.kube.selectors import label_selector


class ParameterError(ValueError):
    """Error if the parameters of a binding cannot be resolved."""


@dataclass(frozen=True, slots=True)
class PolicyParameters:
    store: Store
    registry: ResourceRegistry

    def resolve(self, kind: Object | None, reference: Object | None, namespace: str) -> Sequence[Object | None]:
        """Return the objects with which to evaluate a policy, one evaluation each. Raises ParameterError.

        None means an evaluation without parameters. An empty list means that the binding does not apply.
        """
        if kind is None or reference is None:
            return [None]
        info = self.resource_of_kind(kind)
        scope = self.namespace_of(info, reference, namespace)
        if reference.get("name"):
            version = self.store.get(info.storage, scope, reference["name"])
            versions = [version] if version is not None else []
        else:
            selector = label_selector(reference.get("selector") or {})
            versions = [each for each in self.store.list_objects(info.storage, scope) if selector.matches(each.labels)]
        if not versions and reference.get("parameterNotFoundAction") == "Deny":
            raise ParameterError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return [msgspec.json.decode(each.raw) for each in versions]

    def resource_of_kind(self, kind: Object) -> ResourceInfo:
        group, _, version = kind["apiVersion"].rpartition("/")
        for info in self.registry:
            resource = info.resource
            if (resource.group, resource.version, resource.kind) == (group, version, kind["kind"]):
                return info
        raise ParameterError(f"paramKind kind `{kind['apiVersion']}, Kind={kind['kind']}` not known")

    def namespace_of(self, info: ResourceInfo, reference: Object, namespace: str) -> str:
        """The namespace of the parameters; empty for a cluster-scoped kind."""
        requested: str = reference.get("namespace") or ""
        if not info.resource.namespaced:
            if requested:
                raise ParameterError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
            return ""
        if not (requested or namespace):
            reason = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
            raise ParameterError(reason)
        return requested or namespace

"""The parameters of policies: the objects that a binding names or selects."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.apiserver.storage.store import Store
from tapestry.kube.objects import Object
from tapestry.kube.selectors import label_selector


class ParameterError(ValueError):
    """A binding cannot have the parameters that it asks for."""


@dataclass(frozen=True, slots=True)
class PolicyParameters:
    store: Store
    registry: ResourceRegistry

    def resolve(self, kind: Object | None, reference: Object | None, namespace: str) -> Sequence[Object | None]:
        """The objects that a policy of this paramKind is to be asked with, one after the other; raises ParameterError.

        None stands for no parameter; nothing at all, for a binding that holds only where there is one.
        """
        if kind is None or reference is None:
            return [None]
        row = self.resource_of_kind(kind)
        where = self.namespace_of(row, reference, namespace)
        if reference.get("name"):
            version = self.store.get(row.storage, where, reference["name"])
            found = [version] if version is not None else []
        else:
            selector = label_selector(reference.get("selector") or {})
            found = [each for each in self.store.list_objects(row.storage, where) if selector.matches(each.labels)]
        if not found and reference.get("parameterNotFoundAction") == "Deny":
            raise ParameterError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return [msgspec.json.decode(each.raw) for each in found]

    def resource_of_kind(self, kind: Object) -> ResourceInfo:
        group, _, version = kind["apiVersion"].rpartition("/")
        for row in self.registry:
            resource = row.resource
            if (resource.group, resource.version, resource.kind) == (group, version, kind["kind"]):
                return row
        raise ParameterError(f"paramKind kind `{kind['apiVersion']}, Kind={kind['kind']}` not known")

    def namespace_of(self, info: ResourceInfo, reference: Object, namespace: str) -> str:
        """The namespace that parameters are in; none, for those of a kind that is in none."""
        asked: str = reference.get("namespace") or ""
        if not info.resource.namespaced:
            if asked:
                raise ParameterError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
            return ""
        if not (asked or namespace):
            why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
            raise ParameterError(why)
        return asked or namespace

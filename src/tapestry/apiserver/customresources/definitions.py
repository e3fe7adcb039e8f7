"""CustomResourceDefinitions: served resources, pruning, defaulting and validation of their objects."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.faults import Fault, first_faults, invalid_object, invalid_value
from tapestry.apiserver.core.field_validation import report_field_errors
from tapestry.apiserver.core.names import dns_1035_label_errors
from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.core.resource_registry import (
    PrinterColumn,
    ResourceInfo,
    ResourceRegistry,
    Subresource,
    version_priority,
)
from tapestry.apiserver.core.storage_versions import StorageVersion
from tapestry.apiserver.core.store import Store, WatchEvent
from tapestry.apiserver.core.type_decoders import OBJECT_META, TypeDecoders
from tapestry.apiserver.customresources.rule_validation import rule_faults
from tapestry.apiserver.customresources.structural_schema import SchemaNode, compile_schema
from tapestry.apiserver.customresources.validation_rules import RuleNode, compile_rules, subschemas
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.objects import Object, is_deleting, name_of, value_at, with_value
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
TERMINATING_VERBS = ("delete", "deletecollection", "get", "list", "watch")
AGE_COLUMN = PrinterColumn("Age", ".metadata.creationTimestamp", "date")


@dataclass
class Definitions:
    """Keep the served resources equal to the definitions in the store."""

    store: Store
    registry: ResourceRegistry
    types: TypeDecoders
    schemas: dict[tuple[str, str, str], "CompiledSchema"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.on_change(DEFINITIONS, self.on_change)

    def on_change(self, event: WatchEvent) -> None:
        if event.new is None:
            self.stop_serving(msgspec.json.decode(event.raw))
        else:
            self.try_serve(msgspec.json.decode(event.new.raw))

    def try_serve(self, definition: Object) -> None:
        try:
            self.serve(definition)
        except Exception:  # one broken definition must not affect the others
            log.exception("CustomResourceDefinition cannot be served", definition=name_of(definition))

    def serve(self, definition: Object) -> None:
        self.stop_serving(definition)
        spec = definition["spec"]
        if self.registry.has_built_in(spec["group"], spec["names"]["plural"]):
            return  # Kubernetes accepts these definitions, too, and does not serve them
        for info in served_resources(definition):
            resource, schema = info.resource, CompiledSchema(info.schema)
            self.registry.add(
                replace(info, storage_version=defaulting_storage_version(info, schema))
                if has_defaults(info.schema)
                else info
            )
            self.schemas[resource.group, resource.version, resource.plural] = schema

    def stop_serving(self, definition: Object) -> None:
        spec = definition["spec"]
        self.registry.remove(spec["group"], spec["names"]["plural"])
        self.schemas = {
            key: schema
            for key, schema in self.schemas.items()
            if (key[0], key[2]) != (spec["group"], spec["names"]["plural"])
        }

    def schema_for(self, info: ResourceInfo) -> "CompiledSchema":
        """The schema of a resource. Raises NotFound if its definition was deleted meanwhile."""
        resource = info.resource
        schema = self.schemas.get((resource.group, resource.version, resource.plural))
        if schema is None:
            raise api_errors.path_not_found()
        return schema

    # -- steps

    async def prune_and_default(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        """Remove fields that the schema does not have, and set defaults."""
        info = request.target.info
        if request.verb == "create" and "create" not in info.verbs:
            raise api_errors.crd_terminating()
        unknown: list[str] = []
        pruned = self.schema_for(info).node.prune_and_default(
            {key: each for key, each in new.items() if key != "metadata"}, "", unknown
        )
        metadata, reading = self.types.decode(OBJECT_META, new["metadata"], info.resource.kind)
        unknown_fields = [path for path in unknown if path not in ("apiVersion", "kind")]
        report_field_errors(request, [*(f"metadata.{path}" for path in reading.unknown), *unknown_fields], [])
        return {"apiVersion": new["apiVersion"], "kind": new["kind"], **pruned, "metadata": metadata}

    async def validate(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        """Reject an object that violates its schema. Existing violations that did not change are allowed."""
        info = request.target.info
        schema = self.schema_for(info)
        faults = schema.node.faults({key: each for key, each in new.items() if key != "metadata"}, "")
        reported = first_faults(faults)
        if reported and old is not None:
            before = {(each.path, each.message) for each in schema.node.faults(old, "")}
            reported = first_faults(each for each in chain(reported, faults) if (each.path, each.message) not in before)
        if schema.rules is not None:
            reported += schema.rules.faults(new, old, reported, request.warnings)
        if reported:
            raise invalid_object(info.resource, name_of(new), reported)
        return new


class CompiledSchema:
    """The schema of a custom resource, compiled on first use."""

    def __init__(self, schema: Object) -> None:
        self._schema = schema

    @cached_property
    def node(self) -> SchemaNode:
        return compile_schema(self._schema)

    @cached_property
    def rules(self) -> RuleNode | None:
        return compile_rules(self._schema)


def has_defaults(schema: Object) -> bool:
    return "default" in schema or any(map(has_defaults, subschemas(schema)))


def defaulting_storage_version(info: ResourceInfo, schema: CompiledSchema) -> StorageVersion:
    """A storage version that also sets defaults which are newer than the stored object."""

    def with_defaults(obj: Object) -> Object:
        defaulted = schema.node.prune_and_default({key: each for key, each in obj.items() if key != "metadata"}, "", [])
        return {"kind": obj["kind"], **defaulted, "metadata": obj["metadata"]}

    return StorageVersion(info.storage_api_version, lambda obj: obj, with_defaults)


@dataclass(frozen=True)
class DefinitionStrategy:
    """Pipeline steps for CustomResourceDefinitions."""

    registry: ResourceRegistry
    now: Any

    async def default(self, _: WriteRequest, __: Object | None, new: Object) -> Object:
        spec = new.get("spec") or {}
        names = spec.get("names") or {}
        kind = names.get("kind", "")
        defaulted = {"singular": kind.lower(), "listKind": f"{kind}List" if kind else "", **names}
        conversion = with_default_port(spec.get("conversion") or {"strategy": "None"})
        spec = {**spec, "conversion": conversion, "names": defaulted}
        return {**new, "spec": spec}

    async def validate(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if faults := first_faults(chain(definition_faults(new), self.name_conflict_faults(new))):
            raise invalid_object(request.target.info.resource, name_of(new), faults)
        return with_established_status(new, self.now())

    def name_conflict_faults(self, definition: Object) -> Iterator[Fault]:
        spec = definition["spec"]
        group, plural = spec.get("group", ""), value_at(spec, "names", "plural", default="")
        if self.registry.has_built_in(group, plural):
            yield invalid_value("spec.names.plural", plural, f"{plural}.{group} is a resource of the server itself")


def with_default_port(conversion: Object) -> Object:
    service = value_at(conversion, "webhook", "clientConfig", "service")
    if service is None:
        return conversion
    return with_value(conversion, ("webhook", "clientConfig", "service"), {"port": 443, **service})


def definition_faults(definition: Object) -> Iterator[Fault]:
    spec = definition["spec"]
    names, versions = spec.get("names", {}), spec.get("versions") or []
    expected_name = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if name_of(definition) != expected_name:
        yield Fault(
            "metadata.name",
            "FieldValueInvalid",
            f'Invalid value: "{name_of(definition)}": must be spec.names.plural+"."+spec.group',
        )
    if "." not in spec.get("group", ""):
        yield invalid_value("spec.group", spec.get("group", ""), "should be a domain with at least one dot")
    for field_name in ("plural", "singular", "kind", "listKind"):
        if not names.get(field_name):
            yield Fault(f"spec.names.{field_name}", "FieldValueRequired", "Required value")
    if not versions:
        yield Fault("spec.versions", "FieldValueRequired", "Required value")
    elif sum(bool(each.get("storage")) for each in versions) != 1:
        message = "Invalid value: must have exactly one version marked as storage version"
        yield Fault("spec.versions", "FieldValueInvalid", message)
    for number, each in enumerate(versions):
        if errors := dns_1035_label_errors(each.get("name", "")):
            yield invalid_value(f"spec.versions[{number}].name", each.get("name", ""), ",".join(errors))
        if not value_at(each, "schema", "openAPIV3Schema"):
            path = f"spec.versions[{number}].schema.openAPIV3Schema"
            yield Fault(path, "FieldValueRequired", "Required value")
        yield from required_field_faults(each, f"spec.versions[{number}]")
    yield from version_rule_faults(versions)
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        message = f'Unsupported value: "{spec.get("scope", "")}": supported values: "Cluster", "Namespaced"'
        yield Fault("spec.scope", "FieldValueNotSupported", message)


def required_field_faults(version: Object, field_path: str) -> Iterator[Fault]:
    """Missing required fields in the parts of a version."""
    for field_name, required in REQUIRED_FIELDS.items():
        for number, each in enumerate(version.get(field_name) or ()):
            for name in required:
                if not each.get(name):
                    yield Fault(f"{field_path}.{field_name}[{number}].{name}", "FieldValueRequired", "Required value")
    scale = value_at(version, "subresources", "scale")
    for name in ("specReplicasPath", "statusReplicasPath") if scale else ():
        if not scale.get(name):
            yield Fault(f"{field_path}.subresources.scale.{name}", "FieldValueRequired", "Required value")


REQUIRED_FIELDS = {"additionalPrinterColumns": ("name", "type", "jsonPath"), "selectableFields": ("jsonPath",)}


def version_rule_faults(versions: list[Object]) -> Iterator[Fault]:
    """Faults of the rules of all versions. If all have the same schema, Kubernetes reports it only once."""
    schemas = [value_at(each, "schema", "openAPIV3Schema", default={}) for each in versions]
    if schemas and all(each == schemas[0] for each in schemas):
        yield from rule_faults(schemas[0], "spec.validation.openAPIV3Schema")
        return
    for number, each in enumerate(schemas):
        yield from rule_faults(each, f"spec.versions[{number}].schema.openAPIV3Schema")


def with_established_status(definition: Object, now: datetime) -> Object:
    """The definition with the status of an established one."""
    spec, status = definition["spec"], definition.get("status") or {}
    conditions = status.get("conditions")
    for type, reason, message in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ):
        conditions = with_condition(conditions, new_condition(type, True, reason, message), now)
    storage_names = [each["name"] for each in spec["versions"] if each.get("storage")]
    stored = list(dict.fromkeys([*status.get("storedVersions", ()), *storage_names]))
    return {
        **definition,
        "status": {**status, "conditions": conditions, "acceptedNames": spec["names"], "storedVersions": stored},
    }


def served_resources(definition: Object) -> list[ResourceInfo]:
    """The resource infos of all served versions."""
    spec = definition["spec"]
    names, group = spec["names"], spec["group"]
    storage = next(f"{group}/{each['name']}" for each in spec["versions"] if each.get("storage"))
    infos = []
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        resource = Resource(group, version["name"], names["kind"], names["plural"], spec["scope"] == "Namespaced")
        info = ResourceInfo(
            resource,
            names.get("singular") or names["kind"].lower(),
            TERMINATING_VERBS if is_deleting(definition) else VERBS,
            tuple(names.get("shortNames") or ()),
            tuple(names.get("categories") or ()),
            subresources_of(version, resource),
            storage=resource.name,
            schema=value_at(version, "schema", "openAPIV3Schema", default={}),
            printer_columns=printer_columns(version),
            selectable_fields=tuple(each["jsonPath"].lstrip(".") for each in version.get("selectableFields") or ()),
            scale=value_at(version, "subresources", "scale", default={}),
            conversion_webhook=conversion_webhook(spec),
            list_kind_override=names.get("listKind", ""),
            deprecation_warning=deprecation_warning(version, spec) if version.get("deprecated") else "",
            schema_size=len(msgspec.json.encode(version.get("schema"))),
        )
        infos.append(replace(info, storage_api_version=storage) if storage != resource.api_version else info)
    return infos


def deprecation_warning(version: Object, spec: Object) -> str:
    """The deprecation warning of a version: its own, or a default that names a newer version."""
    if "deprecationWarning" in version:
        return str(version["deprecationWarning"])
    old, kind = version["name"], spec["names"]["kind"]
    others = [each["name"] for each in spec["versions"] if each.get("served") and not each.get("deprecated")]
    newer = sorted((each for each in others if version_priority(each) < version_priority(old)), key=version_priority)
    use = f"; use {spec['group']}/{newer[0]} {kind}" if newer else ""
    return f"{spec['group']}/{old} {kind} is deprecated{use}"


def conversion_webhook(spec: Object) -> Object:
    """The conversion webhook of a definition; empty if there is none."""
    conversion = spec.get("conversion") or {}
    return (conversion.get("webhook") or {}) if conversion.get("strategy") == "Webhook" else {}


def subresources_of(version: Object, resource: Resource) -> dict[str, Subresource]:
    declared = version.get("subresources") or {}
    subresources = {}
    if "status" in declared:
        verbs = ("get", "patch", "update")
        subresources["status"] = Subresource("status", resource.kind, verbs, resource.group, resource.version)
    if declared.get("scale"):
        subresources["scale"] = Subresource("scale", "Scale", ("get", "patch", "update"), "autoscaling", "v1")
    return subresources


def printer_columns(version: Object) -> tuple[PrinterColumn, ...]:
    declared = version.get("additionalPrinterColumns") or ()
    columns = [
        PrinterColumn(
            each["name"],
            each["jsonPath"],
            each.get("type", "string"),
            each.get("format", ""),
            each.get("description", ""),
            each.get("priority", 0),
        )
        for each in declared
    ]
    return tuple(columns) or (AGE_COLUMN,)

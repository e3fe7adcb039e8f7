"""OpenAPI v3 documents of groups and versions with custom resources."""

from collections.abc import Sequence
from gzip import decompress
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.documents.openapi_archive import (
    custom_part,
    custom_type_name,
    recorded_document,
    recorded_etags,
)
from tapestry.kube.objects import Object


class Components(Struct):
    schemas: dict[str, Raw]


class RecordedDocument(Struct):
    """A document whose parts are not decoded, because that would take much more memory."""

    openapi: str
    info: Object
    paths: dict[str, Raw]
    components: Components


def document_of(name: str, custom: Sequence[ResourceInfo]) -> Object:
    """The document with the built-in resources of `name` and the custom ones."""
    info: Object = {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}
    base = RecordedDocument("3.0.0", info, {}, Components({}))
    if name in recorded_etags():
        base = msgspec.json.decode(decompress(recorded_document(name)), type=RecordedDocument)
    paths, schemas = base.paths, dict[str, Any](base.components.schemas)
    for each in custom:
        part, shared_types = custom_part("v3", each)
        type_name = custom_type_name(each)
        paths |= part.paths
        schemas |= shared_types
        schemas |= {**part.types, type_name: custom_schema(each, part.types[type_name])}
    return {"openapi": base.openapi, "info": base.info, "paths": paths, "components": {"schemas": schemas}}


def custom_schema(info: ResourceInfo, common: Object) -> Object:
    """The schema of a custom resource; `common` has the fields that every custom resource has."""
    schema = info.schema or {"type": "object"}
    properties = {name: each for name, each in common["properties"].items() if name != "spec"}
    group_version_kind = {key: each for key, each in common.items() if key.startswith("x-kubernetes-group")}
    return {**schema, "properties": {**(schema.get("properties") or {}), **properties}, **group_version_kind}

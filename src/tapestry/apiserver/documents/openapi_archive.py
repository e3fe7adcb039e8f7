"""Recorded OpenAPI documents of built-in kinds, and templates for those of custom resources.

The archive is made by tools/openapi_documents.py. Its documents are compressed, and sent as they are.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from gzip import decompress
from importlib import resources
from typing import NamedTuple
from zipfile import ZipFile

import msgspec
from msgspec import Raw, Struct

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.kube.objects import Object

FILE_NAME = "openapi.zip"
TEMPLATE_NAMES = {
    "operation": "GroupqExampleVerq",
    "tag": "groupqExample_verq",
    "type": "example.groupq.verq",
    "group": "groupq.example",
    "version": "verq",
    "plural": "pluralq",
    "list": "Listq",
    "kind": "Kindq",
}
"""Names in the templates that stand for those of a custom resource."""
TEMPLATE_PATTERN = re.compile(f"({'|'.join(map(re.escape, TEMPLATE_NAMES.values()))})")
SEPARATORS = re.compile("[^A-Za-z0-9]+")


def archive_member(name: str) -> bytes:
    with resources.files("tapestry.apiserver").joinpath("data", FILE_NAME).open("rb") as file, ZipFile(file) as archive:
        return archive.read(name)


@cache
def recorded_etags() -> Mapping[str, str]:
    """The recorded documents by name (`v2`, `v3/api/v1`, `v3/apis/apps`), with a hash of each."""
    return msgspec.json.decode(archive_member("etags.json"), type=dict[str, str])


def recorded_document(name: str) -> bytes:
    """The document, compressed with gzip."""
    return archive_member(f"{name}.json.gz")


class Template(NamedTuple):
    parts: Sequence[str]
    """JSON of a CustomPart, in parts; every other part is a name of `TEMPLATE_NAMES`."""
    shared_types: Mapping[str, Raw]
    """The types that all custom resources use."""


class CustomPart(Struct):
    """The part of a document about one custom resource."""

    paths: dict[str, Raw]
    types: dict[str, Object]
    """The type of its objects, which has only the common fields, and that of lists."""


@cache
def custom_template(openapi_version: str, scope: str) -> Template:
    document = msgspec.json.decode(decompress(recorded_document(f"template/{openapi_version}/{scope}")))
    types = document.get("definitions") or document["components"]["schemas"]
    own = {name: each for name, each in types.items() if name.startswith(TEMPLATE_NAMES["type"])}
    shared = {name: Raw(msgspec.json.encode(each)) for name, each in types.items() if name not in own}
    return Template(TEMPLATE_PATTERN.split(msgspec.json.encode(CustomPart(document["paths"], own)).decode()), shared)


def custom_part(openapi_version: str, info: ResourceInfo) -> tuple[CustomPart, Mapping[str, Raw]]:
    """The part of a v2 or v3 document about a custom resource, and the other types that it uses."""
    replacements = {TEMPLATE_NAMES[key]: name for key, name in template_names(info).items()}
    template = custom_template(openapi_version, "Namespaced" if info.resource.namespaced else "Cluster")
    parts = [*template.parts]
    parts[1::2] = [replacements[each] for each in template.parts[1::2]]
    part = msgspec.json.decode("".join(parts), type=CustomPart)
    unserved = tuple(f"}}/{name}" for name in ("status", "scale") if name not in info.subresources)
    part.paths = {path: each for path, each in part.paths.items() if not unserved or not path.endswith(unserved)}
    return part, template.shared_types


def template_names(info: ResourceInfo) -> dict[str, str]:
    resource = info.resource
    group = camel_case(resource.group.removesuffix(".k8s.io"))
    version = camel_case(resource.version)
    return {
        "operation": group + version,
        "tag": f"{uncapitalized(group)}_{resource.version}",
        "type": custom_type_prefix(info),
        "group": resource.group,
        "version": resource.version,
        "plural": resource.plural,
        "list": info.list_kind,
        "kind": resource.kind,
    }


def custom_type_prefix(info: ResourceInfo) -> str:
    """The reversed group and the version, as in `com.example.v1`."""
    return ".".join([*reversed(info.resource.group.split(".")), info.resource.version])


def custom_type_name(info: ResourceInfo) -> str:
    return f"{custom_type_prefix(info)}.{info.resource.kind}"


def camel_case(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in SEPARATORS.split(name))


def uncapitalized(name: str) -> str:
    return name[:1].lower() + name[1:]

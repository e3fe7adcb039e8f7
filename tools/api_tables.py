"""Generate the API server's table of built-in resources from documents that Kubernetes publishes.

    python tools/api_tables.py    writes src/tapestry/apiserver/data/kubernetes.json.gz

This needs Go for its module cache. The files are committed, so nothing else needs Go. The discovery documents list the
resources, and the OpenAPI documents their fields. Defaults that only repeat an empty value are omitted, except those of
structs, which exist even if unset. Descriptions are omitted: tools/openapi_documents.py records them. Versions that
a server does not serve by default (alpha, beta) are omitted.
"""

import gzip
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

MODULE = "k8s.io/kubernetes"
VERSION = "v1.34.3"
DATA = Path(__file__).parent.parent / "src" / "tapestry" / "apiserver" / "data"
NOTICE = (
    "Copyright The Kubernetes Authors.  Licensed under the Apache License, Version 2.0.  Made by tools/api_tables.py "
    f"from {MODULE} {VERSION}, api/discovery and api/openapi-spec/v3: rearranged."
)
STABLE = re.compile(r"v\d+")
UNSERVED = {"internal.apiserver.k8s.io", "storagemigration.k8s.io"}
COPIED_FIELDS = ("type", "format", "required", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
LIST_RULES = ("list-type", "list-map-keys", "map-type", "patch-merge-key", "patch-strategy", "unions")

Json = dict[str, Any]


def module_folder() -> Path:
    """Return the folder of the module in Go's cache, downloading it if necessary."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        result = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return Path(json.loads(result.stdout)["Dir"])


def resources(folder: Path) -> list[Json]:
    """Return every resource of every stable version, in the order of discovery."""
    found = legacy_rows(json.loads((folder / "discovery" / "api__v1.json").read_text()))
    for group in json.loads((folder / "discovery" / "aggregated_v2.json").read_text())["items"]:
        name = group["metadata"]["name"]
        for version in group["versions"]:
            if name not in UNSERVED and STABLE.fullmatch(version["version"]):
                found += [row(name, version["version"], each) for each in version["resources"]]
    return found


def row(group: str, version: str, each: Json) -> Json:
    return {
        "group": group,
        "version": version,
        "kind": each["responseKind"]["kind"],
        "plural": each["resource"],
        "singular": each["singularResource"],
        "namespaced": each["scope"] == "Namespaced",
        "verbs": each["verbs"],
        "shortNames": each.get("shortNames", []),
        "categories": each.get("categories", []),
        "subresources": [
            subresource(sub, sub["subresource"], sub["responseKind"]) for sub in each.get("subresources", [])
        ],
    }


def subresource(each: Json, name: str, kind: Json) -> Json:
    found = {"name": name, "kind": kind["kind"], "verbs": each["verbs"]}
    return {**found, **{field: kind[field] for field in ("group", "version") if kind.get(field)}}


def legacy_rows(document: Json) -> list[Json]:
    """Return the rows of a legacy discovery document, in which subresources are separate entries."""
    rows: dict[str, Json] = {}
    for each in document["resources"]:
        if "/" not in each["name"]:
            kind = {"kind": each["kind"]}
            scope = "Namespaced" if each["namespaced"] else "Cluster"
            rows[each["name"]] = row(
                "",
                "v1",
                {
                    **each,
                    "resource": each["name"],
                    "singularResource": each["singularName"],
                    "scope": scope,
                    "responseKind": kind,
                },
            )
    for each in document["resources"]:
        plural, slash, name = each["name"].partition("/")
        if slash:
            rows[plural]["subresources"].append(subresource(each, name, each))
    return list(rows.values())


def schemas(folder: Path) -> dict[str, Json]:
    """Return the types of all OpenAPI documents by name."""
    found: dict[str, Json] = {}
    for path in sorted((folder / "openapi-spec" / "v3").glob("*.json")):
        found |= json.loads(path.read_text()).get("components", {}).get("schemas", {})
    return found


def kinds(published: dict[str, Json]) -> dict[tuple[str, str, str], str]:
    """Return the type name of each kind."""
    found: dict[tuple[str, str, str], str] = {}
    for name, schema in published.items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            found.setdefault((gvk["group"], gvk["version"], gvk["kind"]), name)
    return found


def reduced(schema: Json) -> Json:
    """Return the parts of a schema that describe the structure of objects and the merging of lists."""
    [*wrapped] = schema.get("allOf", ())
    if len(wrapped) == 1:
        schema = {**schema, **wrapped[0]}
    found = {key: schema[key] for key in COPIED_FIELDS if schema.get(key)}
    found |= {
        f"x-kubernetes-{key}": schema[f"x-kubernetes-{key}"] for key in LIST_RULES if f"x-kubernetes-{key}" in schema
    }
    if "$ref" in schema:
        found["$ref"] = schema["$ref"].rpartition("/")[2]
    if "oneOf" in schema:
        found["x-kubernetes-int-or-string"] = True
    if schema.get("default") not in (None, "", 0, False, {}) or (schema.get("default") == {} and "$ref" in schema):
        found["default"] = schema["default"]
    if "properties" in schema:
        found["properties"] = {name: reduced(each) for name, each in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = reduced(schema[key])
    return found


def empty_struct(schema: Json, published: dict[str, Json]) -> Json:
    """Return an empty struct as Go encodes it, without omitted fields."""
    found = {}
    for field, each in schema.get("properties", {}).items():
        if "allOf" not in each and each.get("default") in ("", 0, False):
            found[field] = each["default"]
        elif (struct := embedded_struct(each, published)) is not None:
            found[field] = empty_struct(struct, published)
    return found


def embedded_struct(schema: Json, published: dict[str, Json]) -> Json | None:
    """Return the type of a field that is a struct and not a pointer, else None."""
    if schema.get("default") != {} or "allOf" not in schema:
        return None
    return published[schema["allOf"][0]["$ref"].rpartition("/")[2]]


def reachable_types(roots: list[str], types: dict[str, Json]) -> dict[str, Json]:
    """Return the types reachable from `roots`, including these."""
    found: dict[str, Json] = {}
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = types[name]
            pending += re.findall(r'"\$ref": "([^"]+)"', json.dumps(types[name]))
    return dict(sorted(found.items()))


def main() -> None:
    folder = module_folder() / "api"
    rows = resources(folder)
    published = schemas(folder)
    types = {name: reduced(schema) for name, schema in published.items()}
    named_by = kinds(published)
    roots = [f"{META}ObjectMeta", f"{META}ListMeta"]
    for each in rows:
        for named in (each, *each["subresources"]):
            group, version = named.get("group", each["group"]), named.get("version", each["version"])
            name = named_by.get((group, version, named["kind"]))
            if name is not None:
                roots.append(name)
                if named is each:
                    each["schema"] = name
                    status = published[name].get("properties", {}).get("status", {})
                    if (struct := embedded_struct(status, published)) is not None:
                        each["blankStatus"] = empty_struct(struct, published)
    table = {"notice": NOTICE, "version": VERSION, "resources": rows, "schemas": reachable_types(roots, types)}
    write_table("kubernetes.json.gz", table)
    print(f"{len(rows)} resources, {len(table['schemas'])} types")


def write_table(name: str, table: Json) -> None:
    text = json.dumps(table, separators=(",", ":"), sort_keys=True).encode()
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / name).write_bytes(gzip.compress(text, mtime=0))
    print(f"{name}: {(DATA / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

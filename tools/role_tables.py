"""Generate the default RBAC roles and bindings of the API server from those of Kubernetes.

    python tools/role_tables.py    writes src/tapestry/apiserver/data/roles.json.gz

This needs Go for its module cache. The file is committed, so nothing else needs Go. The objects are those that
Kubernetes' own tests expect with default feature gates. Fields that all of them share are omitted.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import yaml

from api_tables import MODULE, VERSION, module_folder

TARGET = Path(__file__).parent.parent / "src" / "tapestry" / "apiserver" / "data" / "roles.json.gz"
SOURCE = Path("plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata")
NOTICE = (
    "Copyright The Kubernetes Authors.  Licensed under the Apache License, Version 2.0.  Made by tools/role_tables.py "
    f"from {MODULE} {VERSION}, {SOURCE}: rearranged, what all objects have in common left out."
)
FILES = {
    "clusterroles": ("cluster-roles", "controller-roles"),
    "clusterrolebindings": ("cluster-role-bindings", "controller-role-bindings"),
    "roles": ("namespace-roles",),
    "rolebindings": ("namespace-role-bindings",),
}
COMMON = {
    "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
}


def objects(folder: Path, plural: str) -> list[dict[str, Any]]:
    reduced_objects = []
    for name in FILES[plural]:
        reduced_objects += [reduced(each) for each in yaml.safe_load((folder / f"{name}.yaml").read_text())["items"]]
    return sorted(reduced_objects, key=lambda each: (each["metadata"].get("namespace", ""), each["metadata"]["name"]))


def reduced(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without its kind and without metadata that all objects share."""
    metadata = {key: value for key, value in obj["metadata"].items() if value and key != "creationTimestamp"}
    for field, common in COMMON.items():
        if any(metadata.get(field, {}).get(key) != value for key, value in common.items()):
            raise SystemExit(f"{metadata['name']}: {field} are not what all others have")
        own = {key: value for key, value in metadata.pop(field).items() if key not in common}
        metadata |= {field: own} if own else {}
    rest = {key: value for key, value in obj.items() if value and key not in ("apiVersion", "kind", "metadata")}
    return {"metadata": metadata, **rest}


def main() -> None:
    folder = module_folder() / SOURCE
    data = {"notice": NOTICE, "version": VERSION, "common": COMMON}
    data |= {"objects": {plural: objects(folder, plural) for plural in FILES}}
    TARGET.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()

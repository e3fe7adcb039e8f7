"""Makes the roles and bindings that an API server is born with, from what Kubernetes publishes of its own.

    python tools/role_tables.py    writes src/tapestry/apiserver/data/roles.json.gz

Needs Go for its module cache; the file is committed, so nothing else does.  The objects are those that Kubernetes' own
tests expect its server to install with default feature gates; what all of them have in common is left out.
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
    found = []
    for name in FILES[plural]:
        found += [reduced(each) for each in yaml.safe_load((folder / f"{name}.yaml").read_text())["items"]]
    return sorted(found, key=lambda each: (each["metadata"].get("namespace", ""), each["metadata"]["name"]))


def reduced(obj: dict[str, Any]) -> dict[str, Any]:
    """The object without its kind and without the metadata that all of them have."""
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

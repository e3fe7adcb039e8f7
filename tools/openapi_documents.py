"""Record the OpenAPI documents of a Kubernetes API server, which our API server serves for built-in kinds.

    python tools/openapi_documents.py    writes src/tapestry/apiserver/data/openapi.zip

This starts the kube-apiserver of `make kube-assets`. The documents are recorded from a running server because the
published ones lack enums. Deprecated paths (/watch/) are omitted: our server does not serve them. The documents are
stored as they are sent, compressed with gzip. For custom resources, the archive has templates in which the names of
`TEMPLATE_NAMES` stand for those of the resource.
"""

import gzip
import hashlib
import json
import os
import ssl
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from tapestry.apiserver.documents.openapi_archive import FILE_NAME, TEMPLATE_NAMES
from tapestry.local.kubernetes import ControlPlane, find_assets

DATA = Path(__file__).parent.parent / "src" / "tapestry" / "apiserver" / "data"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOTICE = (
    "Copyright The Kubernetes Authors.  Licensed under the Apache License, Version 2.0.  Recorded by "
    "tools/openapi_documents.py from kube-apiserver {version}: deprecated paths omitted."
)
GROUP = TEMPLATE_NAMES["group"]
TEMPLATE_PATH = f"apis/{GROUP}/{TEMPLATE_NAMES['version']}"
TIMEOUT = 60.0

Json = dict[str, Any]


class Server:
    """HTTP client of a control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._tls = ssl.create_default_context(cafile=str(plane.ca))

    def __call__(self, method: str, path: str, body: Json | None = None) -> Json:
        headers = {"Authorization": f"Bearer {self._plane.token}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._plane.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, context=self._tls) as response:
            found: Json = json.load(response)
        return found

    def wait_for_paths(self, *, present: bool) -> Json:
        """Return the v2 document once it and v3 agree about the template resource."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            swagger = self("GET", "/openapi/v2")
            in_v2 = any(path.startswith(f"/{TEMPLATE_PATH}/") for path in swagger["paths"])
            in_v3 = TEMPLATE_PATH in self("GET", "/openapi/v3")["paths"]
            if in_v2 is in_v3 is present:
                return swagger
            time.sleep(0.5)
        raise TimeoutError("the documents do not follow the CustomResourceDefinition")


def template_definition(scope: str) -> Json:
    preserved = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    scale = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}
    names = {"plural": TEMPLATE_NAMES["plural"], "kind": TEMPLATE_NAMES["kind"], "listKind": TEMPLATE_NAMES["list"]}
    version = {"name": TEMPLATE_NAMES["version"], "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": names,
            "versions": [
                {
                    **version,
                    "schema": {"openAPIV3Schema": preserved},
                    "subresources": {"status": {}, "scale": scale},
                }
            ],
        },
    }


def without_watch_paths(document: Json) -> Json:
    return {**document, "paths": {path: each for path, each in document["paths"].items() if "/watch/" not in path}}


def template_part(swagger: Json) -> Json:
    """Return the paths and definitions of the template resource in the v2 document."""
    prefix = f"{TEMPLATE_NAMES['type']}."
    return {
        "paths": {path: each for path, each in swagger["paths"].items() if path.startswith(f"/{TEMPLATE_PATH}/")},
        "definitions": {name: each for name, each in swagger["definitions"].items() if name.startswith(prefix)},
    }


def recorded_documents(server: Server) -> dict[str, Json]:
    index = server("GET", "/openapi/v3")["paths"]
    found = {f"v3/{path}": server("GET", each["serverRelativeURL"]) for path, each in index.items()}
    found["v2"] = server("GET", "/openapi/v2")
    for scope in ("Namespaced", "Cluster"):
        server("POST", CRDS, template_definition(scope))
        swagger = server.wait_for_paths(present=True)
        found[f"template/v3/{scope}"] = server("GET", f"/openapi/v3/{TEMPLATE_PATH}")
        found[f"template/v2/{scope}"] = template_part(swagger)
        server("DELETE", f"{CRDS}/{TEMPLATE_NAMES['plural']}.{GROUP}")
        server.wait_for_paths(present=False)
    return {name: without_watch_paths(each) for name, each in found.items()}


def write_archive(documents: dict[str, Json], version: str) -> None:
    encoded = {name: json.dumps(each, separators=(",", ":")).encode() for name, each in sorted(documents.items())}
    etags = {name: hashlib.sha512(body).hexdigest().upper() for name, body in encoded.items()}
    members = {f"{name}.json.gz": gzip.compress(body, mtime=0) for name, body in encoded.items()}
    members["etags.json"] = json.dumps(etags, separators=(",", ":")).encode()
    members["NOTICE"] = NOTICE.format(version=version).encode()
    with zipfile.ZipFile(DATA / FILE_NAME, "w", zipfile.ZIP_STORED) as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name), body)  # without the time, so that the file is reproducible
    print(f"{FILE_NAME}: {len(encoded)} documents, {(DATA / FILE_NAME).stat().st_size:,} bytes")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder), find_assets(os.environ)) as plane:
        server = Server(plane)
        write_archive(recorded_documents(server), server("GET", "/version")["gitVersion"])


if __name__ == "__main__":
    main()

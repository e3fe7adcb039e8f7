"""An operator with webhooks and an aggregated API, for tests: writes the text of each Page into a ConfigMap.

Pages have one field `text` in v1alpha1, and `lines` in v1, which is stored. The webhooks convert them, set the owner,
and reject pages without lines. The aggregated API has one resource, which names the caller. The program needs only
Python, and trusts all callers.
"""

import base64
import json
import os
import ssl
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CERTIFICATE = Path("/certificate")
GROUP = "/apis/example.com/v1"
PAUSE_SECONDS = 0.5


# -- webhooks


def defaulted(request: dict[str, Any]) -> dict[str, Any]:
    patch = [{"op": "add", "path": "/spec/owner", "value": request["userInfo"]["username"]}]
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}


def validated(request: dict[str, Any]) -> dict[str, Any]:
    if request["object"]["spec"].get("lines"):
        return {"allowed": True}
    return {"allowed": False, "status": {"message": "a page needs lines"}}


def converted(request: dict[str, Any]) -> dict[str, Any]:
    wanted = request["desiredAPIVersion"]
    objects = [converted_page(each, wanted) for each in request["objects"]]
    return {"convertedObjects": objects, "result": {"status": "Success"}}


def converted_page(page: dict[str, Any], version: str) -> dict[str, Any]:
    spec = dict(page.get("spec", {}))
    if version.endswith("/v1") and "text" in spec:
        spec["lines"] = spec.pop("text").split("\n")
    if version.endswith("/v1alpha1") and "lines" in spec:
        spec = {"text": "\n".join(spec["lines"])}
    return {**page, "apiVersion": version, "spec": spec}


STATISTICS = "/apis/statistics.example.com/v1"
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": STATISTICS.removeprefix("/apis/"),
    "resources": [{"name": "callers", "singularName": "", "namespaced": False, "kind": "Caller", "verbs": ["get"]}],
}
HANDLERS = {"/default": defaulted, "/validate": validated, "/convert": converted}


class Webhooks(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        responses = {STATISTICS: RESOURCES, f"{STATISTICS}/callers": {"user": self.headers["X-Remote-User"]}}
        self.answer(json.dumps(responses.get(self.path.partition("?")[0], {})).encode())

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        review["response"] = {"uid": request["uid"], **HANDLERS[self.path.partition("?")[0]](request)}
        self.answer(json.dumps(review).encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve() -> None:
    server = ThreadingHTTPServer(("", 8443), Webhooks)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE / "tls.crt", CERTIFICATE / "tls.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


# -- controller


def call(method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
    """Return the response of the API server, which is called and authenticated as in every pod."""
    address = f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": content_type}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"https://{address}{path}", data, headers, method=method)
    tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=tls) as response:
        return json.load(response)


def reconcile(page: dict[str, Any]) -> None:
    metadata, text = page["metadata"], "\n".join(page["spec"]["lines"])
    if page.get("status", {}).get("observed") == text:
        return
    owner = {"apiVersion": page["apiVersion"], "kind": "Page", "name": metadata["name"], "uid": metadata["uid"]}
    copy = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": metadata["name"], "ownerReferences": [owner]},
        "data": {"text": text},
    }
    namespace, apply = metadata["namespace"], "application/apply-patch+yaml"
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    call("PATCH", f"{maps}/{metadata['name']}?fieldManager=pages&force=true", copy, apply)
    status = f"{GROUP}/namespaces/{namespace}/pages/{metadata['name']}/status"
    call("PATCH", status, {"status": {"observed": text}}, "application/merge-patch+json")


def main() -> None:
    threading.Thread(target=serve, daemon=True).start()
    pause = threading.Event()
    while True:
        try:
            for page in call("GET", f"{GROUP}/pages")["items"]:
                reconcile({"apiVersion": "example.com/v1", **page})
        except (OSError, urllib.error.HTTPError) as error:
            sys.stderr.write(f"pages are tried again: {error}\n")
        pause.wait(PAUSE_SECONDS)


if __name__ == "__main__":
    main()

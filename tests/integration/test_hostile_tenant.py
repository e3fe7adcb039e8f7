"""Attempts of a plane's cluster-admin on its neighbours, the process, its machine and its disk.

`tapestry planes run` is a process of its own, and the attempts use real sockets. A row of the tables says what is tried
and how it must be refused; `<a>`, `<b>` and so on are the ids of planes. No answer may contain what only a neighbour
knows. Some attempts need a function instead of a row. Those that fill plane A come last.
"""

import asyncio
import base64
import io
import json
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.planes.listening_planes import MAPS, HttpResponse

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.kube.resources import CONFIGMAPS as MAPS_OF_B

from .hostile_tenant import (
    CANARY,
    DOMAIN,
    LIMITS,
    MERGE_PATCH,
    REASON,
    SECRET,
    SIGNING_REQUESTS,
    TIMEOUT,
    HostileTenant,
    definition,
    hostile_tenant,
    signed_certificate,
    state_of_neighbour,
    tls_context,
    unchanged_files,
)

PLANE_RECORDS = "/apis/tapestry.io/v1alpha1/planes"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
PODS, SERVICES = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/services"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
TOKENS = "/api/v1/namespaces/default/serviceaccounts/default/token"
UNKNOWN = "aaaaaaaaaaaaaaaa"
NAME_OF_A, NAME_OF_B = f"<a>.{DOMAIN}", f"<b>.{DOMAIN}"
NAME_OF_MANAGEMENT = f"management.{DOMAIN}"
UNAUTHORIZED, FORBIDDEN, MISSING, MISDIRECTED = (401,), (401, 403), (404,), (421,)
NO_SUCH_PATH = (400, 401, 403, 404, 421)
Act = Callable[[HostileTenant], Awaitable[None]]


@dataclass(frozen=True)
class Attempt:
    """A request that must be refused with one of the statuses."""

    name: str
    statuses: tuple[int, ...]
    target: str
    method: str = "GET"
    body: Any = None
    server_name: str = ""
    """Name in the TLS handshake; the default selects no plane."""
    host: str = "localhost"
    credentials: str = "token"
    """`token` or `certificate` of a member of system:masters in A, `signed` by a request in A, or `none`."""
    headers: dict[str, str] = field(default_factory=dict)

    async def act(self, tenant: HostileTenant) -> None:
        response = await tenant.request(
            *(self.method, self.target, self.body),
            server_name=self.server_name,
            credentials=self.credentials,
            host=self.host,
            headers=self.headers,
        )
        check_refused(response, self.statuses)


def check_refused(response: HttpResponse, statuses: tuple[int, ...]) -> None:
    assert response.status in statuses, f"{response.status}, expected {statuses}: {response.body[:300]!r}"
    for secret in (CANARY, REASON):
        assert secret not in response.body.decode(errors="replace"), response.body[:300]


# -- names of planes

NAMES = [
    Attempt("server name of A, Host of B", MISDIRECTED, SECRET, server_name=NAME_OF_A, host=NAME_OF_B),
    Attempt("server name of A, Host of B and a port", MISDIRECTED, SECRET, server_name=NAME_OF_A, host=f"{NAME_OF_B}:1"),
    Attempt("server name of A, path of B", MISDIRECTED, f"/planes/<b>{SECRET}", server_name=NAME_OF_A),
    Attempt("server name of A with its certificate, path of B", MISDIRECTED, f"/planes/<b>{SECRET}",
            server_name=NAME_OF_A, credentials="certificate"),
    Attempt("server name of A, path of the management API", MISDIRECTED, f"/planes/management{PLANE_RECORDS}",
            server_name=NAME_OF_A),
    Attempt("server name of A, Host of the management API", MISDIRECTED, PLANE_RECORDS, server_name=NAME_OF_A,
            host=NAME_OF_MANAGEMENT),
    Attempt("server name of B, Host of A", MISDIRECTED, SECRET, server_name=NAME_OF_B, host=NAME_OF_A),
    Attempt("server name of B, path of A", MISDIRECTED, f"/planes/<a>{SECRET}", server_name=NAME_OF_B),
    Attempt("server name of an unknown plane, path of B", MISDIRECTED, f"/planes/<b>{SECRET}",
            server_name=f"{UNKNOWN}.{DOMAIN}"),
    Attempt("server name in capitals", UNAUTHORIZED, SECRET, server_name=f"<B>.{DOMAIN}".upper()),
    Attempt("server name below that of B", MISSING, SECRET, server_name=f"x.{NAME_OF_B}"),
    Attempt("server name of the domain", MISSING, SECRET, server_name=DOMAIN),
    Attempt("Host of B without a server name", MISDIRECTED, SECRET, host=NAME_OF_B),
    Attempt("Host of B with a dot, path of A", MISDIRECTED, f"/planes/<a>{SECRET}", host=f"{NAME_OF_B}."),
    Attempt("headers of proxies that name B", MISSING, SECRET, server_name=NAME_OF_A, headers={
        "X-Forwarded-Host": NAME_OF_B, "X-Forwarded-Prefix": "/planes/<b>", "Forwarded": f"host={NAME_OF_B}",
        "X-Original-URL": f"/planes/<b>{SECRET}", "X-Rewrite-URL": f"/planes/<b>{SECRET}"}),
]  # fmt: skip

HOSTILE_PATHS = (
    *("/planes/<a>/../<b>", "/planes/<a>/%2e%2e/<b>", "/planes/<a>/%252e%252e/<b>", "/planes/<a>/..%2f<b>"),
    *("/planes/<a>%2f..%2f<b>", "/planes/<a>%252f..%252f<b>", "/planes/<a>/..;/<b>", "/planes/<a>;/../<b>"),
    *("/planes/<a>/..\\<b>", "/planes/<a>/%5c..%5c<b>", "/planes/<a>//<b>", "/planes/<a>//planes/<b>"),
    *("//planes/<b>", "/planes//<b>", "/./planes/<b>", "/planes/./<b>", "/planes/<a>/./../<b>", "/%70lanes/<b>"),
    *("/planes/<a>/planes/<b>", "/planes/<a>/../../planes/<b>", "/planes/<a>?/../<b>", "/planes/<a>%00/../<b>"),
    *("/planes/<a>/api/v1/../../../<b>", "/planes/<a>/openapi/v3/../../../<b>", "/PLANES/<b>", "/planes/<a>%20/../<b>"),
)
PATHS = [
    *(Attempt(f"path {path}", NO_SUCH_PATH, path + SECRET) for path in HOSTILE_PATHS),
    *(
        Attempt(f"path {path} with the server name of A", NO_SUCH_PATH, path + SECRET, server_name=NAME_OF_A)
        for path in HOSTILE_PATHS[:4]
    ),
    Attempt("absolute form of B on a connection of A", NO_SUCH_PATH, f"https://{NAME_OF_B}{SECRET}",
            server_name=NAME_OF_A, credentials="certificate"),
    Attempt("absolute form with the path of B", NO_SUCH_PATH, f"https://localhost/planes/<b>{SECRET}"),
    Attempt("absolute form of another machine", NO_SUCH_PATH, "http://169.254.169.254/latest/meta-data"),
    Attempt("CONNECT to this machine", (400, 405), "127.0.0.1:<port>", method="CONNECT"),
    Attempt("OPTIONS *", (400, 405), "*", method="OPTIONS"),
    Attempt("list of planes", MISSING, "/planes/"),
]  # fmt: skip


# -- credentials of A at B and at the management API

EXECUTORS = ("system:apiserver", "system:kube-controller-manager", "system:bootstrap", "kubernetes-admin")
IMPERSONATION = {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"}
FRONT_PROXY = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters", "X-Remote-Extra-Scopes": "all"}
PEER_CERTIFICATE = {"X-SSL-Client-CN": "admin", "X-Forwarded-Client-Cert": "Subject=\"CN=admin,O=system:masters\"",
                    "SSL-Client-Verify": "SUCCESS", "X-Forwarded-User": "admin"}  # fmt: skip


def at_others(name: str, target: str = SECRET, **options: Any) -> list[Attempt]:
    """Return attempts at B and the management API, by path and by server name."""
    result = []
    for where, id in (("B", "<b>"), ("the management API", "management"), ("a sleeping plane", "<asleep>")):
        path = PLANE_RECORDS if id == "management" else target
        result += [
            Attempt(f"{name} at {where} by path", FORBIDDEN, f"/planes/{id}{path}", **options),
            Attempt(f"{name} at {where} by name", FORBIDDEN, path, server_name=f"{id}.{DOMAIN}", **options),
        ]
    return result


CREDENTIALS = [
    *at_others("token of A"),
    *at_others("certificate of A", credentials="certificate"),
    *at_others("certificate that A signed", credentials="signed"),
    *at_others("token of A and impersonation", headers=IMPERSONATION),
    *at_others("certificate of A and headers of a front proxy", credentials="certificate", headers=FRONT_PROXY),
    *at_others("headers of a TLS proxy", credentials="none", headers=PEER_CERTIFICATE),
    Attempt("certificate of A at A by path", FORBIDDEN, f"/planes/<a>{SECRET}", credentials="certificate"),
    Attempt("certificate of A at the process", MISSING, SECRET, credentials="certificate"),
    Attempt("token of A in the query", FORBIDDEN, f"/planes/<b>{SECRET}?access_token=<token>", credentials="none"),
    Attempt("password", FORBIDDEN, f"/planes/<b>{SECRET}", credentials="none",
            headers={"Authorization": "Basic YWRtaW46YWRtaW4="}),
    Attempt("token of A as a WebSocket protocol", FORBIDDEN, f"/planes/<b>{SECRET}", credentials="none", headers={
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io.<token>, base64.binary.k8s.io"}),
    *(Attempt(f"impersonation of {user} reads records", MISSING, f"/planes/<a>{PLANE_RECORDS}",
              headers={"Impersonate-User": user, "Impersonate-Group": "system:masters"}) for user in EXECUTORS),
    Attempt("kubeconfig of B at the management API", FORBIDDEN, "/planes/management/apiext/v1/planes/b/kubeconfig",
            method="POST", body={}),
    Attempt("kubeconfig of B at A", MISSING, "/planes/<a>/apiext/v1/planes/b/kubeconfig", method="POST", body={}),
    Attempt("delete of the own record", FORBIDDEN, f"/planes/management{PLANE_RECORDS}/a", method="DELETE"),
    Attempt("delete of the record of B", FORBIDDEN, f"/planes/management{PLANE_RECORDS}/b", method="DELETE"),
    Attempt("patch of the own limits", FORBIDDEN, f"/planes/management{PLANE_RECORDS}/a", method="PATCH",
            body={"spec": {"limits": {"objects": 0}}}, headers={"Content-Type": MERGE_PATCH}),
    Attempt("suspension of B", FORBIDDEN, f"/planes/management{PLANE_RECORDS}/b", method="PATCH",
            body={"spec": {"state": "Suspended"}}, headers={"Content-Type": MERGE_PATCH}),
    Attempt("copy of B", FORBIDDEN, f"/planes/management{PLANE_RECORDS}", method="POST",
            body={"metadata": {"name": "stolen"}, "spec": {"copyOf": "b"}}),
    Attempt("Lease of the process", FORBIDDEN,
            "/planes/management/apis/coordination.k8s.io/v1/namespaces/tapestry-system/leases"),
    Attempt("secrets of the management API", FORBIDDEN, "/planes/management/api/v1/secrets"),
    Attempt("plain REST API of the management API", FORBIDDEN, "/planes/management/apiext/v1/planes"),
    Attempt("plain REST API without a plane", MISSING, "/apiext/v1/planes"),
    Attempt("plain REST API at A", MISSING, "/planes/<a>/apiext/v1/planes"),
]  # fmt: skip


# -- pages of the process

PROCESS_PAGES = ("/metrics", "/debug/pprof/", "/debug/flags/v", "/logs/", "/configz", "/healthz?verbose", "/readyz?verbose",
                 "/livez", "/version", "/openapi/v2", "/.well-known/openid-configuration", "/")  # fmt: skip
PAGES = [
    *(Attempt(f"{page} of the process", MISSING, page) for page in PROCESS_PAGES),
    *(
        Attempt(f"{page} of the management API", FORBIDDEN, f"/planes/management{page}")
        for page in ("/metrics", "/debug/pprof/", "/logs/", "/configz", "/healthz?verbose", "/readyz?verbose")
    ),
    *(
        Attempt(f"{page} in A", MISSING, f"/planes/<a>{page}")
        for page in ("/debug/pprof/", "/debug/pprof/heap", "/logs/", "/logs/../planes.log", "/configz", "/flagz", "/statusz")
    ),
    *(
        Attempt(f"documents of B in A: {path}", MISSING, f"/planes/<a>{path}")
        for path in (f"/apis/{CANARY}.example.com", f"/openapi/v3/apis/{CANARY}.example.com/v1",
                     f"/api/v1/namespaces/{CANARY}", "/api/v1/namespaces/default/events/canary", SECRET)
    ),
]  # fmt: skip


# -- names as paths of files

CONTINUE = base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":1,"start":"../../planes/b/secrets"}').decode()
INVALID, NO_OBJECT = (400, 422), (301, 400, 404, 405)
STOLEN_NAMES = ("../../planes/b/tapestry.db", "/etc/passwd", "..", ".", "a/../b", "a\u0000b", "%2e%2e%2fb", "con\\..\\b")
FILES = [
    *(Attempt(f"ConfigMap {name!r}", INVALID, f"/planes/<a>{MAPS}", method="POST", body={"metadata": {"name": name}})
      for name in STOLEN_NAMES),
    *(Attempt(f"GET of the ConfigMap {name}", NO_OBJECT, f"/planes/<a>{MAPS}/{name}")
      for name in ("%2e%2e%2f%2e%2e%2ftapestry.db", "..%2f..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "a%00b")),
    *(Attempt(f"namespace {name!r}", INVALID, "/planes/<a>/api/v1/namespaces", method="POST",
              body={"metadata": {"name": name}}) for name in ("../b", "/root", "..")),
    *(Attempt(f"custom kind {plural!r} of {group!r}", INVALID, f"/planes/<a>{CRDS}", method="POST",
              body=definition(plural, group))
      for plural, group in (("../x", "example.com"), ("x", "../../example.com"), ("/etc/x", "example.com"),
                            ("x\u0000", "example.com"), ("..", "example.com"), ("x", "%2e%2e.example.com"))),
    Attempt("key of a Secret", INVALID, "/planes/<a>/api/v1/namespaces/default/secrets", method="POST",
            body={"metadata": {"name": "s"}, "stringData": {"../../pki/ca.key": "x"}}),
    Attempt("certificate request with a path", INVALID, f"/planes/<a>{SIGNING_REQUESTS}", method="POST",
            body={"metadata": {"name": "../../../process/pki/ca"}, "spec": {"request": "", "signerName": "a.b/c"}}),
    Attempt("token of the account ../../b", NO_OBJECT, "/planes/<a>/api/v1/namespaces/default/serviceaccounts/..%2fb/token",
            method="POST", body={"spec": {}}),
    Attempt("storage of B in a continue token", (400, 410), f"/planes/<a>{MAPS}?limit=1&continue={CONTINUE}"),
]  # fmt: skip


# -- requests that two parsers read differently

INNER = "GET /planes/<b>" + SECRET + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer <token>\r\n\r\n"
OUTER = "POST /planes/<a>" + MAPS + " HTTP/1.1\r\nAuthorization: Bearer <token>\r\nContent-Type: application/json\r\n"
LOCAL = OUTER + "Host: localhost\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
SMUGGLED = {
    "chunked and Content-Length": LOCAL + CHUNKED + "Content-Length: 4\r\n\r\n0\r\n\r\n" + INNER,
    "Content-Length and chunked": LOCAL + "Content-Length: 4\r\n" + CHUNKED + "\r\n0\r\n\r\n" + INNER,
    "two Content-Lengths": LOCAL + "Content-Length: 0\r\nContent-Length: 9\r\n\r\n" + INNER,
    "list of Content-Lengths": LOCAL + "Content-Length: 0, 9\r\n\r\n" + INNER,
    "signed Content-Length": LOCAL + "Content-Length: +0\r\n\r\n" + INNER,
    "negative Content-Length": LOCAL + "Content-Length: -1\r\n\r\n" + INNER,
    "two Hosts": LOCAL + f"Host: {NAME_OF_B}\r\nContent-Length: 0\r\n\r\n" + INNER,
    "no Host": OUTER + "Content-Length: 0\r\n\r\n" + INNER,
    "space before the colon": LOCAL + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + INNER,
    "unknown encoding": LOCAL + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunked twice": LOCAL + CHUNKED + CHUNKED + "\r\n0\r\n\r\n" + INNER,
    "folded header": LOCAL + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + INNER,
    "huge chunk": LOCAL + CHUNKED + "\r\nffffffffffffffffff\r\n" + INNER,
    "chunk size with a sign": LOCAL + CHUNKED + "\r\n-1\r\n" + INNER,
    "line feeds only": (LOCAL + "Content-Length: 0\r\n\r\n").replace("\r\n", "\n") + INNER,
    "NUL in a header": LOCAL + "X-A: a\0b\r\nContent-Length: 0\r\n\r\n" + INNER,
    "carriage return in a header": LOCAL + "X-A: a\rHost: b\r\nContent-Length: 0\r\n\r\n" + INNER,
    "start of HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + INNER,
}


def smuggled(raw: str) -> Act:
    async def act(tenant: HostileTenant) -> None:
        client = await tenant.connect()
        client.writer.write(tenant.format(raw).encode())
        with closing(client.writer):
            async with asyncio.timeout(TIMEOUT):
                with suppress(ConnectionError, ssl.SSLError):
                    found = await client.reader.read(1 << 20)
                    while chunk := await client.reader.read(1 << 20):
                        found += chunk
        assert CANARY.encode() not in found
        statuses = [line.split()[1] for line in found.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        assert statuses == [b"400"] or not statuses, found[:500]

    return act


# -- connections from the process

LOCAL_HOSTS = (
    *("127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0"),
    *("127.1.2.3", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]"),
    *("169.254.169.254", "2852039166", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "100.100.100.200", "[fe80::1]"),
    *("[2002:7f00:1::]", socket.gethostname()),
)


def webhook_to(url: str) -> Act:
    """Let every create of a ConfigMap call the URL."""

    async def act(tenant: HostileTenant) -> None:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
        webhook = {"name": "a.example.com", "rules": [rule], "clientConfig": {"url": tenant.format(url)}}
        webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
        status, text = await tenant.at_home("POST", WEBHOOKS, {"metadata": {"name": "hook"}, "webhooks": [webhook]})
        if status == 422:
            return
        assert status == 201, text
        try:
            text = await tenant.at_home_until("POST", MAPS, {"metadata": {"generateName": "m"}}, 500)
            assert "address not allowed" in text or "resolve" in text.lower() or "name" in text.lower(), text
        finally:
            await tenant.at_home("DELETE", f"{WEBHOOKS}/hook")

    return act


async def webhook_to_service(tenant: HostileTenant) -> None:
    service = {"type": "ExternalName", "externalName": "localhost"}
    await tenant.created_at_home(SERVICES, {"metadata": {"name": "hook"}, "spec": service})
    client = {"service": {"name": "hook", "namespace": "default", "port": tenant.port}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    webhook = {"name": "a.example.com", "rules": [rule], "clientConfig": client}
    webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    await tenant.created_at_home(WEBHOOKS, {"metadata": {"name": "service"}, "webhooks": [webhook]})
    try:
        text = await tenant.at_home_until("POST", MAPS, {"metadata": {"generateName": "m"}}, 500)
        assert "address not allowed" in text
    finally:
        await tenant.at_home("DELETE", f"{WEBHOOKS}/service")


async def conversion_to_loopback(tenant: HostileTenant) -> None:
    client = {"url": f"https://127.0.0.1:{tenant.port}/convert"}
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
    }
    body = definition("converts", "a.example.com", conversion=conversion)
    version = body["spec"]["versions"][0]
    body["spec"]["versions"].append({**version, "name": "v2", "storage": False})
    await tenant.created_at_home(CRDS, body)
    path = "/apis/a.example.com/v2/namespaces/default/converts"
    widget = {"apiVersion": "a.example.com/v2", "kind": "Converts", "metadata": {"name": "w"}}
    assert "address not allowed" in await tenant.at_home_until("POST", path, widget, 500)


async def api_service_to_loopback(tenant: HostileTenant) -> None:
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": tenant.port}]}
    await tenant.created_at_home(SERVICES, {"metadata": {"name": "api"}, "spec": service})
    spec = {
        "group": "x.example.com",
        "version": "v1",
        "insecureSkipTLSVerify": True,
        "service": {"name": "api", "namespace": "default", "port": tenant.port},
        "groupPriorityMinimum": 10,
        "versionPriority": 10,
    }
    await tenant.created_at_home(API_SERVICES, {"metadata": {"name": "v1.x.example.com"}, "spec": spec})
    assert (await tenant.at_home("GET", "/apis/x.example.com/v1/anything"))[0] == 503


def node_at(address: str) -> Act:
    """Read and run in a pod on a node whose kubelet is said to be at the address."""

    async def act(tenant: HostileTenant) -> None:
        name = address.replace(":", "-").replace(".", "-")
        await tenant.created_at_home("/api/v1/nodes", {"metadata": {"name": f"n-{name}"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": tenant.port}},
        }
        patch = {"Content-Type": MERGE_PATCH}
        code, text = await tenant.at_home("PATCH", f"/api/v1/nodes/n-{name}/status", {"status": status}, headers=patch)
        assert code == 200, text
        container = {"name": "c", "image": "i", "ports": [{"containerPort": tenant.port}]}
        spec = {"nodeName": f"n-{name}", "containers": [container]}
        await tenant.at_home_until("POST", PODS, {"metadata": {"name": f"p-{name}"}, "spec": spec}, 201)
        upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
        for path, headers in (
            (f"{PODS}/p-{name}/log", {}),
            (f"{PODS}/p-{name}/exec?command=id&stdout=true", upgrade),
            (f"{PODS}/p-{name}/portforward", upgrade),
            (f"/api/v1/nodes/n-{name}/proxy/pods", {}),
        ):
            code, text = await tenant.at_home("GET", path, headers=headers)
            assert (code in (400, 500, 503), "address not allowed" in text) == (True, True), (path, code, text)

    return act


def pod_at(address: str) -> Act:
    async def act(tenant: HostileTenant) -> None:
        name = f"at-{address.replace(':', '-').replace('.', '-')}"
        container = {"name": "c", "image": "i", "ports": [{"containerPort": tenant.port}]}
        body = {"metadata": {"name": name}, "spec": {"nodeName": "nowhere", "containers": [container]}}
        await tenant.at_home_until("POST", PODS, body, 201)
        status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
        await tenant.at_home("PATCH", f"{PODS}/{name}/status", status, headers={"Content-Type": MERGE_PATCH})
        code, text = await tenant.at_home("GET", f"{PODS}/{name}:{tenant.port}/proxy/")
        assert code in (400, 403, 503), text

    return act


def service_at(address: str) -> Act:
    async def act(tenant: HostileTenant) -> None:
        name = f"at-{address.replace(':', '-').replace('.', '-')}"
        body = {"metadata": {"name": name}, "spec": {"ports": [{"port": tenant.port}]}}
        await tenant.created_at_home(SERVICES, body)
        subset = {"addresses": [{"ip": address}], "ports": [{"port": tenant.port}]}
        await tenant.at_home(
            "POST", "/api/v1/namespaces/default/endpoints", {"metadata": {"name": name}, "subsets": [subset]}
        )
        code, text = await tenant.at_home("GET", f"{SERVICES}/{name}:{tenant.port}/proxy/")
        assert code in (400, 403, 503), text

    return act


# -- sessions, certificates and tokens that A makes


def resumed_session(version: ssl.TLSVersion, server_name: str) -> Act:
    """Resume a TLS session that the admin certificate of A has opened, under another name."""

    async def act(tenant: HostileTenant) -> None:
        context = tls_context(tenant.certificate, version)
        address = tenant.process.address.rpartition(":")[::2]
        names = tenant.format(NAME_OF_A), tenant.format(server_name)

        def ask(name: str, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool, bytes]:
            with (
                socket.create_connection((address[0], int(address[1])), timeout=TIMEOUT) as plain,
                context.wrap_socket(plain, server_hostname=name, session=session) as connection,
            ):
                request = f"POST {WHOAMI} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                connection.sendall(f"{request}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode())
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
                return connection.session, bool(connection.session_reused), answer

        session, _, answer = await asyncio.to_thread(ask, names[0], None)
        assert b'"admin"' in answer
        _, is_reused, answer = await asyncio.to_thread(ask, names[1], session)
        assert not is_reused
        assert b'"admin"' not in answer, answer

    return act


def issued_token(audiences: list[str], target: str) -> Act:
    """Use a token of a service account of A, issued for the audiences."""

    async def act(tenant: HostileTenant) -> None:
        spec = {"audiences": [tenant.format(each) for each in audiences]}
        text = await tenant.at_home_until("POST", TOKENS, {"spec": spec}, 201)
        headers = {"Authorization": f"Bearer {json.loads(text)['status']['token']}"}
        check_refused(await tenant.request("GET", target, credentials="none", headers=headers), UNAUTHORIZED)

    return act


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def forged_token(header: dict[str, Any]) -> Act:
    """Use a token of B's service account that nobody has signed."""

    async def act(tenant: HostileTenant) -> None:
        issuer = "https://kubernetes.default.svc.cluster.local"
        claims = {"iss": issuer, "aud": [issuer], "sub": "system:serviceaccount:kube-system:admin", "exp": 1 << 33}
        token = f"{encoded(header)}.{encoded(claims)}.{base64.urlsafe_b64encode(b'0' * 64).decode().rstrip('=')}"
        headers = {"Authorization": f"Bearer {token}"}
        for id in ("<b>", "management"):
            response = await tenant.request("GET", f"/planes/{id}{SECRET}", credentials="none", headers=headers)
            check_refused(response, UNAUTHORIZED)

    return act


async def bootstrap_token(tenant: HostileTenant) -> None:
    values = {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}
    body = {
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": values,
    }
    await tenant.created_at_home("/api/v1/namespaces/kube-system/secrets", body)
    headers = {"Authorization": "Bearer abcdef.0123456789abcdef"}
    for id in ("<b>", "management"):
        response = await tenant.request("GET", f"/planes/{id}{SECRET}", credentials="none", headers=headers)
        check_refused(response, UNAUTHORIZED)


async def certificate_of_own_authority(tenant: HostileTenant) -> None:
    """Use a certificate of a CA that has the name of B's, but another key."""
    of_b = CertificateAuthority(tenant.process.folder / "planes" / tenant.ids["b"] / "pki")
    forged = tenant.folder / "forged"
    forged.mkdir(exist_ok=True)
    authority = CertificateAuthority(forged)
    files = authority.client_certificate("admin", ["system:masters"])
    files[0].write_text(files[0].read_text() + of_b.certificate_pem())
    client = await tenant.connect(NAME_OF_B, files)
    check_refused(await client.request("GET", SECRET), FORBIDDEN)


async def certificate_of_masters(tenant: HostileTenant) -> None:
    """Let A sign certificates with names that mean something to the process."""
    for name in ("system-apiserver", "kubernetes-admin"):
        files = await signed_certificate(tenant, name)
        for server_name in (NAME_OF_B, NAME_OF_MANAGEMENT):
            client = await tenant.connect(server_name, files)
            check_refused(await client.request("GET", SECRET), FORBIDDEN)


async def another_plane_on_the_same_connection(tenant: HostileTenant) -> None:
    """A connection that A has authenticated gives no rights at B."""
    client = await tenant.connect()
    assert (await client.request("GET", f"/planes/{tenant.ids['a']}/version", token=tenant.token)).status == 200
    for token in ("", tenant.token):
        response = await client.request("GET", f"/planes/{tenant.ids['b']}{SECRET}", token=token)
        check_refused(response, FORBIDDEN)


async def records_in_own_plane(tenant: HostileTenant) -> None:
    """The process follows only the records of its management API, not those of a plane with the same kind."""
    body = definition("planes", "tapestry.io", scope="Cluster")
    body["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved"}
    body["spec"]["versions"][0]["name"] = "v1alpha1"
    await tenant.created_at_home(CRDS, body)
    record = {"apiVersion": "tapestry.io/v1alpha1", "kind": "Planes", "metadata": {"name": "own"}, "spec": {}}
    await tenant.at_home_until("POST", PLANE_RECORDS, record, 201)
    status, _ = await tenant.at_home("POST", "/apiext/v1/planes/own/kubeconfig", {})
    assert status == 404


# -- what others say to callers without their credentials


def answers_like_unknown(name: str, credentials: str) -> Act:
    """A plane that is not open answers a caller without its credentials like an id that does not exist."""

    async def act(tenant: HostileTenant) -> None:
        for token in ("", "wrong", "tapestry.0123456789.secret", "a.b.c"):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            shapes = []
            for id in (UNKNOWN, f"<{name}>"):
                response = await tenant.request(
                    "GET", f"/planes/{id}{SECRET}", credentials=credentials, headers=headers
                )
                check_refused(response, UNAUTHORIZED)
                shapes.append(({**response.headers, "date": ""}, response.body))
            assert shapes[0] == shapes[1]

    return act


async def wrong_token_at_open_plane(tenant: HostileTenant) -> None:
    """A wrong token gets the same answer at an open plane as at an unknown id."""
    headers = {"Authorization": "Bearer tapestry.0123456789.secret"}
    bodies = set()
    for id in (UNKNOWN, "<b>"):
        response = await tenant.request("GET", f"/planes/{id}{SECRET}", credentials="none", headers=headers)
        check_refused(response, UNAUTHORIZED)
        bodies.add(response.body)
    assert len(bodies) == 1


async def wake_without_credentials(tenant: HostileTenant) -> None:
    for credentials in ("none", "token", "certificate", "signed"):
        for target, server_name in ((f"/planes/<asleep>{SECRET}", ""), (SECRET, f"<asleep>.{DOMAIN}")):
            response = await tenant.request("GET", target, credentials=credentials, server_name=server_name)
            check_refused(response, UNAUTHORIZED)
    assert await tenant.phase("asleep") == "Asleep"


async def metrics_of_own_plane(tenant: HostileTenant) -> None:
    """The metrics of A have nothing of B, of the process, or of other planes."""
    status, page = await tenant.at_home("GET", "/metrics")
    assert status == 200
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    assert all(line.startswith("tapestry_plane_") for line in lines)
    assert not [word for word in (*tenant.ids.values(), CANARY, str(tenant.process.folder)) if word in page]


async def documents_of_own_plane(tenant: HostileTenant) -> None:
    """No list or document of A shows anything of B."""
    paths = "/api/v1/secrets", "/api/v1/events", "/api/v1/namespaces", "/apis", CRDS, "/openapi/v2", "/openapi/v3"
    for path in paths:
        status, text = await tenant.at_home("GET", path)
        assert (status, CANARY in text) == (200, False), path


async def watch_of_neighbour(tenant: HostileTenant) -> None:
    """A watch of all namespaces of A gets no event of B."""
    url = f"{tenant.process.url}/planes/{tenant.ids['a']}/api/v1/configmaps?watch=1"
    async with tenant.session.get(url) as response:
        await tenant.neighbour.patch(
            *(MAPS_OF_B, {"metadata": {"name": "canary", "namespace": "default"}}),
            {"data": {"changed": "1"}},
        )
        await tenant.created_at_home(MAPS, {"metadata": {"name": "last"}})
        async with asyncio.timeout(TIMEOUT):
            found = b""
            while b'"last"' not in found:
                found += await response.content.readany()
    assert CANARY.encode() not in found


# -- audit, and what fills memory, disk and time


async def forged_audit_lines(tenant: HostileTenant) -> None:
    """No request writes lines of its own into the audit log of its plane."""
    agent = 'x"},{"kind":"Event","user":{"username":"forged"}}'
    await tenant.request("GET", f"/planes/<a>{MAPS}?a=%0a{{}}%0d", headers={"User-Agent": agent})
    log = tenant.process.folder / "planes" / tenant.ids["a"] / "audit.log"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {each["kind"] for each in lines} == {"Event"}
    assert "forged" not in {each.get("user", {}).get("username") for each in lines}


async def audit_growth(tenant: HostileTenant) -> None:
    """Requests with long URIs do not fill the disk with audit logs."""
    padding = "x" * 60_000

    async def send(count: int) -> None:
        for _ in range(count):
            await tenant.at_home("GET", f"/version?{padding}")

    await asyncio.gather(*(send(300) for _ in range(4)))
    await tenant.check_neighbour_answers()
    logs = list((tenant.process.folder / "planes" / tenant.ids["a"]).glob("audit*"))
    sizes = [each.stat().st_size for each in logs]
    assert (len(logs) <= 5, max(sizes) <= 11 << 20, sum(sizes) <= 51 << 20) == (True, True, True), sizes
    assert sum(sizes) >= 20 << 20  # so that the limit was reached


async def statuses_of(tenant: HostileTenant, count: int, method: str, path: str, body: Any = None) -> Counter[int]:
    """Send a request many times at once, while the neighbour is served."""
    answers = [tenant.at_home(method, path, body) for _ in range(count)]
    results = await asyncio.gather(*answers, *(tenant.check_neighbour_answers() for _ in range(5)))
    return Counter(each[0] for each in results if each is not None)


async def too_many_watches(tenant: HostileTenant) -> None:
    url = f"{tenant.process.url}/planes/{tenant.ids['a']}{MAPS}?watch=1"
    async with AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(tenant.session.get(url)) for _ in range(LIMITS["watches"] + 1)]
        assert answers[-1].status == 429
        await tenant.check_neighbour_answers()
        neighbour = await tenant.connect()
        check_refused(await neighbour.request("GET", f"/planes/{tenant.ids['b']}{SECRET}"), FORBIDDEN)


async def too_many_requests(tenant: HostileTenant) -> None:
    found = await statuses_of(tenant, 150, "GET", "/api/v1/configmaps")
    assert found[429] > 0, found
    assert set(found) <= {200, 429}, found


async def too_many_writes(tenant: HostileTenant) -> None:
    found = await statuses_of(tenant, 150, "POST", f"{MAPS}?dryRun=All", {"metadata": {"generateName": "m"}})
    assert found[429] > 0, found
    assert set(found) <= {201, 429}, found


async def impersonated_flood(tenant: HostileTenant) -> None:
    """Users whom A impersonates share the limits of A."""
    url = f"{tenant.process.url}/planes/{tenant.ids['a']}/api/v1/configmaps"

    async def read(number: int) -> int:
        headers = {"Impersonate-User": f"u{number}", "Impersonate-Group": "system:masters"}
        async with tenant.session.get(url, headers=headers) as response:
            await response.read()
            return response.status

    found = Counter(await asyncio.gather(*(read(number) for number in range(150))))
    assert found[429] > 0, found
    await tenant.check_neighbour_answers()


async def idle_connections(tenant: HostileTenant) -> None:
    """Connections that send nothing, half a request or half a body do not keep the neighbour waiting."""
    for part in (b"", b"GET /planes", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx"):
        for _ in range(50):
            client = await tenant.connect()
            client.writer.write(part)
        await tenant.check_neighbour_answers()


def refused_body(content_type: str, body: bytes, *statuses: int, encoding: str = "") -> Act:
    """Send a body that costs more than it is long."""

    async def act(tenant: HostileTenant) -> None:
        url = f"{tenant.process.url}/planes/{tenant.ids['a']}{MAPS}"
        headers = {"Content-Type": content_type} | ({"Content-Encoding": encoding} if encoding else {})
        async with tenant.session.post(url, data=io.BytesIO(body), headers=headers) as response:
            text = await response.text()
        assert response.status in statuses, (response.status, text[:300])
        await tenant.check_neighbour_answers()

    return act


YAML_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (letter, letter, b",".join([b"*%c" % (letter - 1)] * 9)) for letter in range(98, 110)
)


async def expensive_expressions(tenant: HostileTenant) -> None:
    """A rule of a custom kind that would run for ever is rejected."""
    body = definition("costs", "a.example.com")
    rule = {"rule": "self.l.all(a, self.l.all(b, self.l.all(c, self.l.all(d, a + b + c + d != '!'))))"}
    items = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"l": items}, "x-kubernetes-validations": [rule]}
    body["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    status, text = await tenant.at_home("POST", CRDS, body)
    assert status == 422, text


async def too_many_bytes(tenant: HostileTenant) -> None:
    body = {"metadata": {"generateName": "large"}, "data": {"a": "x" * 1_000_000}}
    statuses = [(await tenant.at_home("POST", MAPS, body))[0] for _ in range(26)]
    assert (statuses[0], statuses[-1]) == (201, 403)
    await tenant.check_neighbour_answers()
    status, _ = await tenant.at_home("DELETE", MAPS)
    assert status == 200


async def too_many_objects(tenant: HostileTenant) -> None:
    found: Counter[int] = Counter()
    for _ in range(100):
        answers = (tenant.at_home("POST", MAPS, {"metadata": {"generateName": "m"}}) for _ in range(10))
        found += Counter([status for status, _ in await asyncio.gather(*answers)])
        if found[403]:
            break
    assert found[403] > 0, found
    for headers in ({"Impersonate-User": user, "Impersonate-Group": "system:masters"} for user in EXECUTORS):
        status, text = await tenant.at_home("POST", MAPS, {"metadata": {"name": "over"}}, headers=headers)
        assert (status, "exceeded quota of objects" in text) == (403, True), text
    status, _ = await tenant.at_home("POST", CRDS, definition("more", "a.example.com"))
    assert status == 403
    await tenant.neighbour.create(MAPS_OF_B, {"metadata": {"generateName": "m", "namespace": "default"}})


ACTIONS: dict[str, Act] = {
    **{
        f"TLS {version.name[-3:]} session of A resumed at {where}": resumed_session(version, name)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
        for where, name in (("B", NAME_OF_B), ("the management API", NAME_OF_MANAGEMENT), ("the process", "localhost"))
    },
    "token of A's account at B": issued_token([], f"/planes/<b>{SECRET}"),
    "token for the audience of B": issued_token(["https://kubernetes.default.svc.cluster.local"], f"/planes/<b>{SECRET}"),
    "token for the name of B": issued_token([NAME_OF_B, "<b>"], f"/planes/<b>{SECRET}"),
    "token of A's account at the management API": issued_token([], f"/planes/management{PLANE_RECORDS}"),
    "token without a signature": forged_token({"alg": "none"}),
    "token with a symmetric signature": forged_token({"alg": "HS256"}),
    "token with the path of a key": forged_token({"alg": "ES256", "kid": "../../../../dev/null"}),
    "bootstrap token of A": bootstrap_token,
    "CA with the name of B's": certificate_of_own_authority,
    "certificates with names of the process": certificate_of_masters,
    "another plane on the same connection": another_plane_on_the_same_connection,
    "records of planes in A": records_in_own_plane,
    **{
        f"answer of a plane that is {name}, {credentials}": answers_like_unknown(name, credentials)
        for name in ("asleep", "suspended")
        for credentials in ("none", "certificate")
    },
    "wrong token at an open plane": wrong_token_at_open_plane,
    "waking a plane without its credentials": wake_without_credentials,
    "metrics of others": metrics_of_own_plane,
    "documents of others": documents_of_own_plane,
    "watch of others": watch_of_neighbour,
    **{f"webhook at {host}": webhook_to(f"https://{host}:<port>/x") for host in LOCAL_HOSTS},
    "webhook at the listener itself": webhook_to("https://127.0.0.1:<own_port>/planes/<b>/x"),
    "webhook without TLS": webhook_to("http://127.0.0.1:<port>/x"),
    "webhook at a file": webhook_to("file:///etc/passwd"),
    "webhook of a Service that is an alias of localhost": webhook_to_service,
    "conversion at loopback": conversion_to_loopback,
    "aggregated API at loopback": api_service_to_loopback,
    **{f"kubelet at {address}": node_at(address) for address in ("127.0.0.1", "::1", "169.254.169.254", "10.0.0.1")},
    **{f"pod at {address}": pod_at(address) for address in ("127.0.0.1", "::1", "169.254.169.254", "10.0.0.1")},
    **{f"Service at {address}": service_at(address) for address in ("127.0.0.1", "169.254.169.254", "10.0.0.1")},
    "lines in the audit log": forged_audit_lines,
    "too many watches": too_many_watches,
    "too many requests": too_many_requests,
    "too many writes": too_many_writes,
    "too many requests of other users": impersonated_flood,
    "connections without requests": idle_connections,
    "body over the limit": refused_body("application/json", b'{"a":"' + b"x" * (4 << 20) + b'"}', 413),
    "deep JSON": refused_body("application/json", b"[" * 100_000, 400, 422),
    "YAML of aliases": refused_body("application/yaml", YAML_BOMB, 400, 413, 422),
    "compressed body": refused_body("application/json", b"\x1f\x8b" + b"0" * 100, 400, 415, encoding="gzip"),
    "expensive expressions": expensive_expressions,
    "too many bytes": too_many_bytes,
    "too many objects": too_many_objects,
    "audit logs as large as the disk": audit_growth,
}
REQUESTS = {each.name: each.act for each in (*NAMES, *PATHS, *CREDENTIALS, *PAGES, *FILES)}
SMUGGLING = {f"smuggling: {name}": smuggled(raw) for name, raw in SMUGGLED.items()}


async def outcomes(tenant: HostileTenant, attempts: Mapping[str, Act], at_once: int) -> dict[str, str]:
    """Make the attempts, and return what was not refused, by name."""
    slots, succeeded = asyncio.Semaphore(at_once), {}

    async def make(name: str, act: Act) -> None:
        async with slots:
            try:
                async with asyncio.timeout(2 * TIMEOUT):
                    await act(tenant)
            except Exception as error:  # an attempt without its refusal
                succeeded[name] = repr(error)

    await asyncio.gather(*(make(name, act) for name, act in attempts.items()))
    return succeeded


async def test_no_attempt_of_a_tenant_succeeds(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    async with hostile_tenant(tmp_path) as tenant:
        before = await state_of_neighbour(tenant)
        with unchanged_files(tenant):
            succeeded = await outcomes(tenant, SMUGGLING, at_once=len(SMUGGLING))
            succeeded |= await outcomes(tenant, REQUESTS, at_once=LIMITS["requestsInFlight"] // 3)
            succeeded |= await outcomes(tenant, ACTIONS, at_once=1)
        assert not succeeded, "\n".join(f"{name}: {why}" for name, why in succeeded.items())
        assert tenant.calls == []
        assert await state_of_neighbour(tenant) == before
        await tenant.check_neighbour_answers()
    count = len(SMUGGLING) + len(REQUESTS) + len(ACTIONS)
    record_property("figure", f"hostile tenant: {count} attempts, {len(succeeded)} succeeded")
    assert count >= 80

"""Requests of a hostile tenant that must be refused, as tables."""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.unit.planes.listening_planes import MAPS, HttpResponse

from .hostile_tenant import (
    CANARY,
    DOMAIN,
    MERGE_PATCH,
    REASON,
    SECRET,
    SIGNING_REQUESTS,
    TIMEOUT,
    HostileTenant,
    definition,
)

PLANE_RECORDS = "/apis/tapestry.io/v1alpha1/planes"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PODS, SERVICES = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/services"
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
    Attempt("server name of A, Host of B with port", MISDIRECTED, SECRET, server_name=NAME_OF_A, host=f"{NAME_OF_B}:1"),
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
    Attempt("server name of B in capitals", FORBIDDEN, SECRET, server_name=f"<b-in-capitals>.{DOMAIN}"),
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

PROCESS_PAGES = ("/metrics", "/debug/pprof/", "/debug/flags/v", "/logs/", "/configz", "/healthz?verbose",
                 "/readyz?verbose", "/livez", "/version", "/openapi/v2", "/.well-known/openid-configuration",
                 "/")  # fmt: skip
PAGES = [
    *(Attempt(f"{page} of the process", MISSING, page) for page in PROCESS_PAGES),
    *(
        Attempt(f"{page} of the management API", FORBIDDEN, f"/planes/management{page}")
        for page in ("/metrics", "/debug/pprof/", "/logs/", "/configz", "/healthz?verbose", "/readyz?verbose")
    ),
    *(
        Attempt(f"{page} in A", MISSING, f"/planes/<a>{page}")
        for page in ("/debug/pprof/", "/debug/pprof/heap", "/logs/", "/logs/../log", "/configz", "/flagz", "/statusz")
    ),
    *(
        Attempt(f"documents of B in A: {path}", MISSING, f"/planes/<a>{path}")
        for path in (f"/apis/{CANARY}.example.com", f"/openapi/v3/apis/{CANARY}.example.com/v1",
                     "/api/v1/namespaces/default/events/canary", SECRET)
    ),
]  # fmt: skip


# -- names as paths of files

CONTINUE = base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":1,"start":"../../planes/b/secrets"}').decode()
INVALID, NO_OBJECT = (400, 422), (301, 400, 404, 405)
STOLEN_NAMES = (
    "../../planes/b/tapestry.db",
    "/etc/passwd",
    "..",
    ".",
    "a/../b",
    "a\u0000b",
    "%2e%2e%2fb",
    "con\\..\\b",
)
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
    Attempt("token of the account ../b", NO_OBJECT, method="POST", body={"spec": {}},
            target="/planes/<a>/api/v1/namespaces/default/serviceaccounts/..%2fb/token"),
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

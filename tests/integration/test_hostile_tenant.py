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
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from tests.unit.planes.listening_planes import MAPS, WHOAMI

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS

from .hostile_addresses import (
    LOCAL_HOSTS,
    api_service_to_loopback,
    conversion_to_loopback,
    node_at,
    pod_at,
    service_at,
    webhook_to,
    webhook_to_service,
)
from .hostile_requests import (
    CRDS,
    CREDENTIALS,
    EXECUTORS,
    FILES,
    FORBIDDEN,
    NAME_OF_A,
    NAME_OF_B,
    NAME_OF_MANAGEMENT,
    NAMES,
    PAGES,
    PATHS,
    PLANE_RECORDS,
    SMUGGLED,
    UNAUTHORIZED,
    UNKNOWN,
    Act,
    check_refused,
    smuggled,
)
from .hostile_tenant import (
    CANARY,
    DOMAIN,
    LIMITS,
    SECRET,
    TIMEOUT,
    HostileTenant,
    definition,
    hostile_tenant,
    signed_certificate,
    state_of_neighbour,
    tls_context,
    unchanged_files,
)
from .plane_clients import together

REFUSALS_MISSING = (AssertionError, OSError, EOFError, KubeError, aiohttp.ClientError)
TOKENS = "/api/v1/namespaces/default/serviceaccounts/default/token"


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
        bodies.add(json.dumps(json.loads(response.body)))
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
            *(CONFIGMAPS, {"metadata": {"name": "canary", "namespace": "default"}}),
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

    await together(send(300) for _ in range(4))
    await tenant.check_neighbour_answers()
    logs = list((tenant.process.folder / "planes" / tenant.ids["a"]).glob("audit*"))
    sizes = [each.stat().st_size for each in logs]
    assert len(logs) <= 5
    assert max(sizes) <= 12 << 20, sizes


async def statuses_of(tenant: HostileTenant, count: int, method: str, path: str, body: Any = None) -> Counter[int]:
    """Send a request many times at once, while the neighbour is served."""
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(tenant.check_neighbour_answers())
        return Counter(status for status, _ in await together(tenant.at_home(method, path, body) for _ in range(count)))


async def too_many_watches(tenant: HostileTenant) -> None:
    url = f"{tenant.process.url}/planes/{tenant.ids['a']}{MAPS}?watch=1"
    async with AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(tenant.session.get(url)) for _ in range(LIMITS["watches"] + 1)]
        assert answers[-1].status == 429
        await tenant.check_neighbour_answers()
        neighbour = await tenant.connect()
        check_refused(await neighbour.request("GET", f"/planes/{tenant.ids['b']}{SECRET}"), FORBIDDEN)


async def too_many_requests(tenant: HostileTenant) -> None:
    """Large lists are answered or told to retry, and the neighbour is served meanwhile."""
    found = await statuses_of(tenant, 60, "GET", "/api/v1/configmaps")
    assert found[429] > 0, found
    assert set(found) <= {200, 429}, found


async def too_many_writes(tenant: HostileTenant) -> None:
    status, text = await tenant.at_home("DELETE", MAPS)  # a full plane is not stuck
    assert status == 200, text
    found = await statuses_of(tenant, 60, "POST", MAPS, {"metadata": {"generateName": "m"}})
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

    found = Counter(await together(read(number) for number in range(60)))
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


async def too_many_objects(tenant: HostileTenant) -> None:
    found: Counter[int] = Counter()
    at_once = LIMITS["requestsInFlight"] // 3
    while not found[403]:
        answers = (tenant.at_home("POST", MAPS, {"metadata": {"generateName": "m"}}) for _ in range(at_once))
        found += Counter([status for status, _ in await together(answers)])
    assert set(found) == {201, 403}
    for headers in ({"Impersonate-User": user, "Impersonate-Group": "system:masters"} for user in EXECUTORS):
        status, text = await tenant.at_home("POST", MAPS, {"metadata": {"name": "over"}}, headers=headers)
        assert (status, "exceeded quota of objects" in text) == (403, True), text
    status, _ = await tenant.at_home("POST", CRDS, definition("more", "a.example.com"))
    assert status == 403
    created = await tenant.neighbour.create(CONFIGMAPS, object_named("during", "default"))
    await tenant.neighbour.delete(CONFIGMAPS, created)


ACTIONS: dict[str, Act] = {
    **{
        f"TLS {version.name[-3:]} session of A resumed at {where}": resumed_session(version, name)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
        for where, name in (("B", NAME_OF_B), ("the management API", NAME_OF_MANAGEMENT), ("the process", "localhost"))
    },
    "token of A's account at B": issued_token([], f"/planes/<b>{SECRET}"),
    "token for the audience of B": issued_token(
        ["https://kubernetes.default.svc.cluster.local"], f"/planes/<b>{SECRET}"
    ),
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
    "too many bytes": too_many_bytes,
    "too many watches": too_many_watches,
    "too many requests": too_many_requests,
    "too many requests of other users": impersonated_flood,
    "connections without requests": idle_connections,
    "body over the limit": refused_body("application/json", b'{"a":"' + b"x" * (4 << 20) + b'"}', 413),
    "deep JSON": refused_body("application/json", b"[" * 100_000, 400, 422),
    "YAML of aliases": refused_body("application/yaml", YAML_BOMB, 400, 413, 422),
    "compressed body": refused_body("application/json", b"\x1f\x8b" + b"0" * 100, 400, 415, encoding="gzip"),
    "expensive expressions": expensive_expressions,
    "too many writes": too_many_writes,
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
            except (*REFUSALS_MISSING, ExceptionGroup) as error:
                succeeded[name] = repr(error)

    await together(make(name, act) for name, act in attempts.items())
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

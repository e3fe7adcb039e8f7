"""Credentials of planes through the management API: issued, listed, revoked and rotated in any state of the plane."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import yaml
from cryptography import x509

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.access import reloading_file
from tapestry.apiserver.access.ephemeral_tokens import create_token
from tapestry.apiserver.core.private_files import lock_file
from tapestry.client.client import Client
from tapestry.client.transport import Request
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, SERVICE_ACCOUNTS
from tapestry.planes.app import PlaneProcess
from tapestry.planes.plane_set import PlaneEntry, PlaneState

from .listening_planes import TlsClient
from .plane_processes import (
    call,
    client_with,
    create_plane,
    is_accepted,
    issue,
    running_planes,
    wait_for_phase,
    wait_until_open,
)

RIGHTS = ("kubeconfig", "credentials", "revoke", "rotate-ca", "rotate-signing-key")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files for changes on every request."""
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 0.0)


def entry_of(process: PlaneProcess, plane: Object) -> PlaneEntry:
    entry = process.plane_set.get(plane_id(plane))
    assert entry is not None
    return entry


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[PlaneProcess, Client]]:
    async with running_planes(tmp_path / "data") as running:
        yield running


async def test_client_certificate_authenticates_until_it_is_revoked(
    running: tuple[PlaneProcess, Client], tmp_path: Path
) -> None:
    process, management = running
    plane = await create_plane(management, "one")
    serial = await issue(management, tmp_path / "admin", clientCertificate=True, seconds=120)
    user = yaml.safe_load((tmp_path / "admin").read_text())["users"][0]["user"]
    assert user.keys() == {"client-certificate-data", "client-key-data"}
    await issue(management, tmp_path / "other", clientCertificate=True)
    assert await is_accepted(tmp_path / "admin")
    assert await call(management, "revoke", serial=serial) == (204, None)
    assert not await is_accepted(tmp_path / "admin")
    assert await is_accepted(tmp_path / "other")
    [revoked] = (await call(management, "credentials"))[1]["revokedCertificates"]
    assert revoked["serial"] == serial
    assert entry_of(process, plane).state is PlaneState.OPEN


async def test_tokens_are_listed_and_revoked_by_id(running: tuple[PlaneProcess, Client], tmp_path: Path) -> None:
    _, management = running
    await create_plane(management, "one")
    id = await issue(management, tmp_path / "ada", user="ada", groups=["system:masters"])
    [listed] = (await call(management, "credentials"))[1]["tokens"]
    assert (listed["id"], listed["user"], listed["groups"]) == (id, "ada", ["system:masters"])
    assert "hash" not in listed
    assert await is_accepted(tmp_path / "ada")
    assert await call(management, "revoke", token=id) == (204, None)
    assert not await is_accepted(tmp_path / "ada")
    assert (await call(management, "credentials"))[1]["tokens"] == []
    status, error = await call(management, "revoke", token=id)
    assert (status, "there is no token" in error["message"]) == (404, True)


async def test_user_loses_all_credentials_at_once(running: tuple[PlaneProcess, Client], tmp_path: Path) -> None:
    _, management = running
    await create_plane(management, "one")
    await issue(management, tmp_path / "token", user="ada", groups=["system:masters"])
    await issue(management, tmp_path / "certificate", user="ada", groups=["system:masters"], clientCertificate=True)
    await issue(management, tmp_path / "admin")
    assert await call(management, "revoke", user="ada") == (204, None)
    assert not await is_accepted(tmp_path / "token")
    assert not await is_accepted(tmp_path / "certificate")
    assert await is_accepted(tmp_path / "admin")
    await issue(management, tmp_path / "new", user="ada", groups=["system:masters"], clientCertificate=True)
    assert await is_accepted(tmp_path / "new")


async def test_clients_of_old_ca_work_until_overlap_ends(running: tuple[PlaneProcess, Client], tmp_path: Path) -> None:
    _, management = running
    await create_plane(management, "one")
    await issue(management, tmp_path / "before", clientCertificate=True)
    status, result = await call(management, "rotate-ca", overlapSeconds=3600)
    assert status == 200
    assert await is_accepted(tmp_path / "before")
    await issue(management, tmp_path / "after", clientCertificate=True)
    assert await is_accepted(tmp_path / "after")
    assert issuer_of(tmp_path / "after") == result["name"] != issuer_of(tmp_path / "before")
    assert (await call(management, "rotate-ca", overlapSeconds=0))[0] == 200
    await issue(management, tmp_path / "last", clientCertificate=True)
    assert await is_accepted(tmp_path / "last")
    trusted = x509.load_pem_x509_certificates(data_of(tmp_path / "last", "certificate-authority-data"))
    assert len(trusted) == 1


def issuer_of(kubeconfig: Path) -> str:
    pem = data_of(kubeconfig, "client-certificate-data")
    return x509.load_pem_x509_certificate(pem).issuer.rfc4514_string()


def data_of(kubeconfig: Path, field: str) -> bytes:
    document = yaml.safe_load(kubeconfig.read_text())
    values = {**document["users"][0]["user"], **document["clusters"][0]["cluster"]}
    return msgspec.json.decode(msgspec.json.encode(values[field]), type=bytes)


async def test_service_account_tokens_end_with_their_signing_key(
    running: tuple[PlaneProcess, Client], tmp_path: Path
) -> None:
    _, management = running
    await create_plane(management, "one")
    await issue(management, tmp_path / "admin")
    document = yaml.safe_load((tmp_path / "admin").read_text())
    async with client_with(tmp_path / "admin") as client:
        robot = await client.create(SERVICE_ACCOUNTS, object_named("robot", "default"))
        issued = await client.create(SERVICE_ACCOUNTS, {**robot, "spec": {}}, subresource="token")
        document["users"][0]["user"] = {"token": issued["status"]["token"]}
        (tmp_path / "robot").write_text(yaml.safe_dump(document))
        async with client_with(tmp_path / "robot") as as_robot:

            async def status() -> int:
                return (await as_robot.transport.send(Request("GET", "/api/v1/namespaces"))).status

            assert (await call(management, "rotate-signing-key", overlapSeconds=3600))[0] == 200
            assert await status() == 403
            assert (await call(management, "rotate-signing-key", overlapSeconds=0))[0] == 200
            assert await status() == 401


async def test_revocation_in_sleeping_plane_does_not_wake_it(
    running: tuple[PlaneProcess, Client], tmp_path: Path
) -> None:
    process, management = running
    plane = await create_plane(management, "one")
    token, other = [await issue(management, tmp_path / name, user=name, groups=[]) for name in ("a", "b")]
    serial = await issue(management, tmp_path / "c", clientCertificate=True)
    entry = entry_of(process, plane)
    await process.plane_set.close(entry, PlaneState.ASLEEP)
    for arguments in ({"token": token}, {"serial": serial}):
        assert await call(management, "revoke", **arguments) == (204, None)
    assert (await call(management, "rotate-ca"))[0] == 200
    assert [each["id"] for each in (await call(management, "credentials"))[1]["tokens"]] == [other]
    for name in ("a", "c"):
        assert not await is_accepted(tmp_path / name)
    assert entry.state is PlaneState.ASLEEP
    await issue(management, tmp_path / "d", clientCertificate=True)
    assert entry.state is PlaneState.ASLEEP
    assert await is_accepted(tmp_path / "d")
    assert entry.state is PlaneState.OPEN
    assert not await is_accepted(tmp_path / "a")


async def test_suspended_plane_keeps_a_revocation(running: tuple[PlaneProcess, Client], tmp_path: Path) -> None:
    _, management = running
    await create_plane(management, "one")
    id = await issue(management, tmp_path / "admin")
    for state in ("Suspended", "Open"):
        await management.patch(PLANES, object_named("one"), {"spec": {"state": state}})
        await wait_for_phase(management, "one", state)
        if state == "Suspended":
            assert await call(management, "revoke", token=id) == (204, None)
    assert not await is_accepted(tmp_path / "admin")


@pytest.mark.parametrize(
    ("interface", "arguments", "message"),
    [
        ("kubeconfig", {"byPath": True, "clientCertificate": True}, "byPath"),
        ("kubeconfig", {"seconds": 59}, "seconds"),
        ("kubeconfig", {"user": "x" * 200, "clientCertificate": True}, "does not fit into a certificate"),
        ("revoke", {}, "exactly one"),
        ("revoke", {"user": "ada", "token": "x"}, "exactly one"),
        ("revoke", {"serial": "no number"}, "not a serial number"),
        ("rotate-ca", {"overlapSeconds": -1}, "overlapSeconds"),
        ("rotate-signing-key", {"overlapSeconds": 366 * 86_400}, "overlapSeconds"),
    ],
)
async def test_invalid_arguments_are_explained(
    running: tuple[PlaneProcess, Client], interface: str, arguments: dict[str, object], message: str
) -> None:
    _, management = running
    await create_plane(management, "one", controllers=["none"])
    status, error = await call(management, interface, **arguments)
    assert status == 400
    assert message in error["message"]


async def test_each_interface_needs_its_own_right(running: tuple[PlaneProcess, Client], tmp_path: Path) -> None:
    _, management = running
    for name in ("one", "two"):
        await create_plane(management, name, controllers=["none"])
    async with client_with(user_of_management(tmp_path, "ada")) as ada:
        for right in RIGHTS:
            assert (await call(ada, right))[0] == 403
            await grant(management, right)
            allowed = {each for each in RIGHTS if (await call(ada, each, user="eve"))[0] != 403}
            assert allowed == {right}
            assert (await call(ada, right, "two", user="eve"))[0] == 403
            await revoke_grant(management, right)


def user_of_management(folder: Path, user: str) -> Path:
    """Return a kubeconfig of a user who has no rights in the management API."""
    _, token = create_token(folder / "data" / "management", user, (), timedelta(hours=1), datetime.now(UTC))
    document = yaml.safe_load((folder / "data" / "kubeconfig").read_text())
    document["users"][0]["user"] = {"token": token}
    (folder / user).write_text(yaml.safe_dump(document))
    return folder / user


async def grant(management: Client, right: str) -> None:
    """Allow ada to use one interface of plane one, and to read it."""
    verb = "get" if right == "credentials" else "create"
    rules = [
        {"apiGroups": ["tapestry.io"], "resources": [f"planes/{right}"], "resourceNames": ["one"], "verbs": [verb]},
        {"apiGroups": ["tapestry.io"], "resources": ["planes"], "verbs": ["get"]},
    ]
    await management.create(CLUSTER_ROLES, object_named(right) | {"rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": right}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"}
    await management.create(CLUSTER_ROLE_BINDINGS, object_named(right) | {"roleRef": role, "subjects": [subject]})


async def revoke_grant(management: Client, right: str) -> None:
    await management.delete(CLUSTER_ROLE_BINDINGS, object_named(right))


@pytest.mark.parametrize(("user", "status"), [("ada", 403), ("", 401)])
async def test_caller_is_rejected_before_its_body_is_read(
    running: tuple[PlaneProcess, Client], tmp_path: Path, user: str, status: int
) -> None:
    process, management = running
    await create_plane(management, "one", controllers=["none"])
    document = yaml.safe_load(user_of_management(tmp_path, "ada").read_text())
    token = document["users"][0]["user"]["token"] if user else ""
    context = ssl.create_default_context(cadata=data_of(tmp_path / "ada", "certificate-authority-data").decode())
    name = document["clusters"][0]["cluster"]["tls-server-name"]
    for right in RIGHTS:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(process.address.rpartition(":")[2]), ssl=context, server_hostname=name
        )
        client = TlsClient(reader, writer)
        length = {"Content-Length": "1000"} if right != "credentials" else {}
        method = "GET" if right == "credentials" else "POST"
        lines = [f"{method} /apiext/v1/planes/one/{right} HTTP/1.1", f"Host: {name}"]
        lines += [f"{key}: {value}" for key, value in length.items()]
        lines += [f"Authorization: Bearer {token}"] if token else []
        writer.write("\r\n".join([*lines, "", ""]).encode())
        assert (await client.response()).status == status
        writer.close()


async def test_expired_tokens_and_ended_rotations_are_removed_at_start(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        plane = await create_plane(management, "one", controllers=["none"])
        assert (await call(management, "rotate-ca", overlapSeconds=1))[0] == 200
        folder = tmp_path / "data" / "planes" / plane_id(plane)
        create_token(folder, "old", (), timedelta(minutes=1), datetime.now(UTC) - timedelta(hours=1))
    async with running_planes(tmp_path / "data", later=timedelta(hours=1)) as (process, _):
        await wait_until_open(process, plane)
        assert "old" not in (folder / "tokens.json").read_text()
        assert len(x509.load_pem_x509_certificates((folder / "pki" / "ca.crt").read_bytes())) == 1


async def test_requests_are_answered_while_a_token_is_stored(
    running: tuple[PlaneProcess, Client], tmp_path: Path
) -> None:
    _, management = running
    plane = await create_plane(management, "one", controllers=["none"])
    lock = ExitStack()
    lock.enter_context(lock_file(tmp_path / "data" / "planes" / plane_id(plane) / "tokens.json"))
    timer = threading.Timer(10.0, lock.close)  # so that the test ends if the event loop waits for the lock
    timer.start()
    issued = asyncio.create_task(issue(management, tmp_path / "admin"))
    for _ in range(5):
        assert await management.list(PLANES)
    assert not issued.done()
    timer.cancel()
    lock.close()
    await issued
    assert await is_accepted(tmp_path / "admin")

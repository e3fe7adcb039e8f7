"""The other processes of a group that hold planes: their addresses, and calls of their interfaces.

All processes of a group have the same keys of the management API. So each proves by its certificate that it belongs to
the group, and accepts the token of any other.
"""

import base64
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import yaml

from tapestry.apiext.interfaces import HttpCall
from tapestry.apis.planes import MANAGEMENT, own_process_name, plane_id
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.kube.crds import HttpRoute
from tapestry.kube.errors import Unavailable, error_from_body
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.schemas import to_unstructured
from tapestry.planes.endpoints import Endpoints
from tapestry.planes.forwarding import Forwarder, ForwardTarget, not_reached, tls_context
from tapestry.planes.kubeconfigs import KubeconfigArguments, KubeconfigResult
from tapestry.planes.own_processes import OwnProcesses
from tapestry.planes.plane_keys import unavailable

CALL_SECONDS = 20.0
TOKEN_LIFETIME = timedelta(minutes=10)
"""Lifetime of the tokens of requests that are passed on; each is used for half of it."""


@dataclass(eq=False)
class PlaneHolders:
    """The other processes that hold planes."""

    endpoints: Endpoints
    own_processes: OwnProcesses
    forwarder: Forwarder = field(default_factory=Forwarder)
    _targets: dict[tuple[str, str, tuple[str, ...]], tuple[datetime, ForwardTarget]] = field(default_factory=dict)
    """Targets by holder with plane, user and groups, with the time until which they are used."""

    def at_holder(self, route: HttpRoute) -> HttpRoute:
        """Return an interface of planes that asks the process that holds the plane, if it is another one."""

        async def handler(call: HttpCall, *arguments: Any) -> Any:
            if self.endpoints.planes.has(plane_id(call.object)):
                return await route.handler(call, *arguments)
            body = await self.call(call.object, route.method, route.path, *arguments)
            return msgspec.json.decode(body, type=route.result) if route.result is not None else None

        return replace(route, handler=handler)

    async def call(self, plane: Object, method: str, path: str, arguments: msgspec.Struct | None = None) -> bytes:
        """Call an interface of a plane at its holder. Raises an ApiError; Unavailable if there is no holder."""
        url = f"{self._management_url(plane)}/apiext/v1/planes/{name_of(plane)}{path}"
        config = self.endpoints.config
        authority = CertificateAuthority(config.management_folder / KEYS_FOLDER).certificate_pem()
        try:
            async with self.forwarder.session.request(
                *(method, url),
                json=to_unstructured(arguments) if arguments is not None else None,
                headers={"Authorization": f"Bearer {config.admin_token_file.read_text()}"},
                ssl=tls_context(authority),
                server_hostname=self.endpoints.names.server_name(MANAGEMENT),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise not_reached(value_at(plane, "status", "holder", default=""), error) from error
        if response.status >= 300:
            raise error_from_body(response.status, body)
        return body

    def _management_url(self, plane: Object) -> str:
        """Return the address of the management API of the process that holds a plane."""
        holder, id = value_at(plane, "status", "holder", default=""), plane_id(plane)
        if not holder:
            raise unavailable("no process holds the plane; try again later")
        if holder == own_process_name(id) and self.own_processes.is_running(id):
            return self._own_url(id)
        url = urlsplit(value_at(plane, "status", "address", default=""))
        base = f"https://{url.netloc}"
        if not url.netloc or base == self.endpoints.base_url or holder == self.endpoints.config.name:
            raise unavailable(f"the process {holder} holds the plane, and its address is not known here; ask that one")
        return base

    def _own_url(self, id: str) -> str:
        """Return the address at which the process of a plane listens, which it writes when it starts."""
        try:
            document = yaml.safe_load((self.own_processes.folder(id) / "kubeconfig").read_bytes())
        except OSError as error:
            raise unavailable("the process of the plane is starting; try again later") from error
        return str(document["clusters"][0]["cluster"]["server"])

    async def forward_by_path(self, exchange: Exchange, id: str) -> bool:
        """Pass a request that names its plane by its path to the process of the plane. Return whether it answers.

        The caller treats other requests as those for an unknown plane, since they are not authenticated here.
        """
        if not self.own_processes.is_running(id):
            return False
        authority = CertificateAuthority(self.own_processes.folder(id) / KEYS_FOLDER)
        try:
            target = ForwardTarget(f"{self._own_url(id)}/planes/{id}", authority.certificate_pem())
            await self.forwarder.forward(exchange, target)
        except Unavailable:
            return False
        return True

    async def target(self, plane: Object, user: str, groups: tuple[str, ...], now: datetime) -> ForwardTarget:
        """Return a plane at its holder for requests of a user. Raises Unavailable."""
        place = f"{plane_id(plane)} {plane['status'].get('holder')} {plane['status'].get('address')}"
        expires, found = self._targets.get((place, user, groups), (now, None))
        if found is None or expires <= now:
            self._targets = {key: value for key, value in self._targets.items() if value[0] > now}
            found = await self.new_target(plane, user, groups, TOKEN_LIFETIME)
            self._targets[place, user, groups] = now + TOKEN_LIFETIME / 2, found
        return found

    async def new_target(self, plane: Object, user: str, groups: tuple[str, ...], lifetime: timedelta) -> ForwardTarget:
        """Let the holder of a plane issue a token. Raises Unavailable."""
        arguments = KubeconfigArguments(user, groups, int(lifetime.total_seconds()))
        body = await self.call(plane, "POST", "/kubeconfig", arguments)
        document = yaml.safe_load(msgspec.json.decode(body, type=KubeconfigResult).kubeconfig)
        cluster, token = document["clusters"][0]["cluster"], document["users"][0]["user"]["token"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return ForwardTarget(
            cluster["server"], authority, cluster.get("tls-server-name", ""), token, plane["status"]["holder"]
        )

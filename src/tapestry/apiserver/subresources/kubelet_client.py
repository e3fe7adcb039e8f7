"""Client for kubelets: their addresses and TLS contexts, and container logs.

The nodes of a host cluster have no kubelets that the server may call: see `core.host_access`.
"""

import os
import re
import ssl
from collections.abc import Iterator
from urllib.parse import quote

import aiohttp
import msgspec

from tapestry.apiserver.core import api_errors, egress
from tapestry.apiserver.core.config import KubeletClientConfig as Settings
from tapestry.apiserver.core.faults import Fault, forbidden_field, invalid_object, invalid_value
from tapestry.apiserver.core.forwarding import ProxiedBody, UpgradeServer
from tapestry.apiserver.core.host_access import HostAccess, not_connected
from tapestry.apiserver.core.outgoing_http import connection_error_text, read_bounded, response_error_text
from tapestry.apiserver.core.requests import TRUE_VALUES, Call, Query, Target
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.store import Store
from tapestry.kube.errors import ApiError, ServerError, error_from_status
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import NODES, Resource

KUBELET_PORT = 10250
PREFERRED_ADDRESS_TYPES = ("InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS")
"""Node address types in order of preference."""
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
BOOLEAN_OPTIONS, NUMBER_MINIMUMS = (
    ("follow", "previous", "timestamps"),
    {"sinceSeconds": 1, "tailLines": 0, "limitBytes": 1},
)
INTEGER = re.compile("-?[0-9]{1,19}")
LOG_OPTIONS = Resource("", "v1", "PodLogOptions", "podlogoptions")
MAX_ERROR_BYTES = 50_000
TEXT_PLAIN = "text/plain"


class KubeletClient:
    """Call the kubelets of nodes. Close it in the event loop in which it was used."""

    def __init__(self, store: Store, settings: Settings, check: egress.AddressCheck, host: HostAccess) -> None:
        self.host = host
        self._store = store
        self._check = check
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[bool, tuple[tuple[float, ...], ssl.SSLContext]] = {}
        """TLS contexts, by whether they verify the kubelet, and the modification times of their files."""

    async def pod_log(self, call: Call, target: Target) -> ApiResponse:
        """The log of a container, possibly followed while the container runs."""
        if call.method not in ("GET", "HEAD"):
            raise api_errors.method_not_allowed()
        if faults := list(log_option_faults(call.query)):
            raise invalid_object(LOG_OPTIONS, target.name, faults)
        version = self._store.get(*target.key)
        if version is None:
            raise api_errors.not_found(target.info.resource, target.name)
        pod: Object = msgspec.json.decode(version.raw)
        container = container_name(pod, call.query.get("container", ""))
        node = value_at(pod, "spec", "nodeName", default="")
        if not node:
            return ApiResponse(200, b"", TEXT_PLAIN)
        path = "/".join(quote(each, safe="") for each in (target.namespace, target.name, container))
        if (proxy := self.host.nodes()) is not None:
            return await proxy.get(node, f"/containerLogs/{path}", log_query(call.query))
        kubelet = self.server(node, skip_verify=call.query.get("insecureSkipTLSVerifyBackend") in TRUE_VALUES)
        url = f"https://{kubelet.authority}/containerLogs/{path}"
        stream = await self._fetch(target, kubelet, url, log_query(call.query))
        return ApiResponse(200, b"", TEXT_PLAIN, stream=stream)

    def server(self, node: str, *, skip_verify: bool = False) -> UpgradeServer:
        """Return the kubelet of a node. Raises NotFound, or ServerError if it has no address.

        Raises Unavailable for the nodes of a host cluster, whatever addresses their objects have.
        """
        if self.host.nodes() is not None:
            raise not_connected()
        version = self._store.get("nodes", "", node)
        if version is None:
            raise api_errors.not_found(NODES, node)
        status = msgspec.json.decode(version.raw).get("status") or {}
        addresses = {each["type"]: each["address"] for each in reversed(status.get("addresses") or ())}
        host = next((addresses[type] for type in PREFERRED_ADDRESS_TYPES if type in addresses), None)
        if host is None:
            types = " ".join(PREFERRED_ADDRESS_TYPES)
            raise api_errors.internal_error(f"no preferred addresses found; known addresses: [{types}]")
        port = value_at(status, "daemonEndpoints", "kubeletEndpoint", "Port") or KUBELET_PORT
        return UpgradeServer(host, port, self._tls_context(verifies=not skip_verify), self._check)

    async def _fetch(self, target: Target, kubelet: UpgradeServer, url: str, query: Query) -> ProxiedBody:
        if self._session is None:
            # a followed log may be silent for a long time
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
            self._session = egress.checked_session(self._check, timeout=timeout)
        try:
            response = await self._session.get(url, params=query, ssl=kubelet.tls or False, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = connection_error_text(error) if isinstance(error, aiohttp.ClientError) else "i/o timeout"
            raise ServerError(500, "", f'Get "{url}": {reason}') from error
        if 200 <= response.status <= 206:
            return ProxiedBody(response)
        try:
            raise kubelet_error(target, response.status, await read_bounded(response.content, MAX_ERROR_BYTES))
        finally:
            response.close()

    def _tls_context(self, *, verifies: bool) -> ssl.SSLContext:
        """Return a context, and create it again when a certificate file has changed."""
        settings = self._settings
        files = filter(None, (settings.certificate_authority, settings.client_certificate, settings.client_key))
        modified = tuple(os.stat(each).st_mtime for each in files)
        known = self._contexts.get(verifies)
        if known is not None and known[0] == modified:
            return known[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if verifies and settings.certificate_authority:
            context.load_verify_locations(settings.certificate_authority)
        else:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if settings.client_certificate:
            context.load_cert_chain(settings.client_certificate, settings.client_key or None)
        self._contexts[verifies] = modified, context
        return context

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def container_name(pod: Object, name: str) -> str:
    """The requested container, or the only one of the pod."""
    spec = pod["spec"]
    names: list[str] = [each["name"] for field in CONTAINERS for each in spec.get(field) or ()]
    if name:
        if name not in names:
            raise api_errors.bad_request(f"container {name} is not valid for pod {name_of(pod)}")
        return name
    if len(spec["containers"]) > 1:
        listed = " ".join(names)
        message = f"a container name must be specified for pod {name_of(pod)}, choose one of: [{listed}]"
        raise api_errors.bad_request(message)
    only: str = spec["containers"][0]["name"]
    return only


def log_option_faults(query: Query) -> Iterator[Fault]:
    for name, minimum in NUMBER_MINIMUMS.items():
        text = query.get(name)
        if text is None:
            continue
        if not INTEGER.fullmatch(text):
            raise api_errors.bad_request(f'strconv.ParseInt: parsing "{text[:40]}": invalid syntax')
        if int(text) < minimum:
            yield invalid_value(
                name, int(text), "must be greater than 0" if minimum else "must be greater than or equal to 0"
            )
    if "sinceSeconds" in query and "sinceTime" in query:
        yield forbidden_field("", "at most one of `sinceTime` or `sinceSeconds` may be specified")


def log_query(query: Query) -> dict[str, str]:
    """The query that is sent to the kubelet."""
    flags = {name: "true" for name in BOOLEAN_OPTIONS if query.get(name) in TRUE_VALUES}
    return flags | {name: query[name] for name in (*NUMBER_MINIMUMS, "sinceTime") if query.get(name)}


def kubelet_error(target: Target, code: int, body: bytes) -> ApiError:
    """The error for a failed response of a kubelet."""
    text = body.decode("utf-8", "replace").strip()
    if code == 500:
        return api_errors.internal_error(text)
    if code == 400:
        return api_errors.bad_request(text)
    reason = "NotFound" if code == 404 else "Unknown"
    message = f"{response_error_text(code, body)} ( {target.info.resource.plural}/{target.subresource} {target.name})"
    return error_from_status({"reason": reason, "message": message}, code=code)

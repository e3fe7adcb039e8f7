"""What kubelets know and the server passes on: the logs of containers."""

import re
import ssl
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from tapestry.apiserver import api_errors
from tapestry.apiserver.admission import egress
from tapestry.apiserver.admission.webhook_client import connection_error_text, read_bounded, response_error_text
from tapestry.apiserver.config import KubeletClientConfig as Settings
from tapestry.apiserver.customresources.definitions import invalid_object
from tapestry.apiserver.customresources.structural_schema import Fault
from tapestry.apiserver.requests import Call, Query, Target
from tapestry.apiserver.server import TRUE_VALUES, ApiResponse
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.validation.faults import forbidden_field, invalid_value
from tapestry.kube.errors import ApiError, ServerError, error_from_status
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import NODES, Resource

KUBELET_PORT = 10250
PREFERRED_ADDRESS_TYPES = ("InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS")
"""Of a node: the first of these that it has is called."""
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
BOOLEAN_OPTIONS, NUMBER_MINIMUMS = (
    ("follow", "previous", "timestamps"),
    {"sinceSeconds": 1, "tailLines": 0, "limitBytes": 1},
)
INTEGER = re.compile("-?[0-9]{1,19}")
LOG_OPTIONS = Resource("", "v1", "PodLogOptions", "podlogoptions")
MAX_ERROR_BYTES = 50_000
TEXT_PLAIN = "text/plain"


@dataclass(slots=True)
class ResponseStream:
    """What a kubelet answers, as it comes."""

    response: aiohttp.ClientResponse

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        async for chunk in self.response.content.iter_any():
            yield chunk

    def end(self) -> None:
        self.response.close()


class KubeletClient:
    """Asks the kubelets of nodes.  To be closed in the loop that it was used in."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def pod_log(self, call: Call, target: Target) -> ApiResponse:
        """The log of a container, which may go on for as long as it runs."""
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
        url = f"{self._kubelet_url(node)}/containerLogs/{path}"
        unchecked = call.query.get("insecureSkipTLSVerifyBackend") in TRUE_VALUES
        relay = await self._fetch(target, url, log_query(call.query), skip_verify=unchecked)
        return ApiResponse(200, b"", TEXT_PLAIN, stream=relay)

    def _kubelet_url(self, node: str) -> str:
        version = self._store.get("nodes", "", node)
        if version is None:
            raise api_errors.not_found(NODES, node)
        status = msgspec.json.decode(version.raw).get("status") or {}
        found = {each["type"]: each["address"] for each in reversed(status.get("addresses") or ())}
        host = next((found[type] for type in PREFERRED_ADDRESS_TYPES if type in found), None)
        if host is None:
            listed = " ".join(PREFERRED_ADDRESS_TYPES)
            raise api_errors.internal_error(f"no preferred addresses found; known addresses: [{listed}]")
        port = value_at(status, "daemonEndpoints", "kubeletEndpoint", "Port") or KUBELET_PORT
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    async def _fetch(self, target: Target, url: str, query: Query, *, skip_verify: bool) -> ResponseStream:
        if self._session is None:
            # a log that is followed may be silent for long
            self._session = egress.checked_session(timeout=aiohttp.ClientTimeout(total=None, sock_connect=30))
        try:
            egress.check_host(urlsplit(url).hostname or "")
            response = await self._session.get(
                url, params=query, ssl=self._tls_context(skip_verify=skip_verify), allow_redirects=False
            )
        except egress.AddressNotAllowed as error:
            raise ServerError(500, "", f'Get "{url}": {error}') from error
        except (aiohttp.ClientError, TimeoutError) as error:
            why = connection_error_text(error) if isinstance(error, aiohttp.ClientError) else "i/o timeout"
            raise ServerError(500, "", f'Get "{url}": {why}') from error
        if 200 <= response.status <= 206:
            return ResponseStream(response)
        try:
            raise kubelet_error(target, response.status, await read_bounded(response.content, MAX_ERROR_BYTES))
        finally:
            response.close()

    def _tls_context(self, *, skip_verify: bool) -> ssl.SSLContext:
        """Made anew each time: its files may have been."""
        settings, context = self._settings, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if skip_verify or not settings.certificate_authority:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context.load_verify_locations(settings.certificate_authority)
        if settings.client_certificate:
            context.load_cert_chain(settings.client_certificate, settings.client_key or None)
        return context

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def container_name(pod: Object, name: str) -> str:
    """The container that is meant: the one of that name, or the only one there is."""
    spec = pod["spec"]
    names: list[str] = [each["name"] for field in CONTAINERS for each in spec.get(field) or ()]
    if name:
        if name not in names:
            raise api_errors.bad_request(f"container {name} is not valid for pod {name_of(pod)}")
        return name
    if len(spec["containers"]) > 1:
        listed = " ".join(names)
        why = f"a container name must be specified for pod {name_of(pod)}, choose one of: [{listed}]"
        raise api_errors.bad_request(why)
    only: str = spec["containers"][0]["name"]
    return only


def log_option_faults(query: Query) -> Iterator[Fault]:
    for name, least in NUMBER_MINIMUMS.items():
        text = query.get(name)
        if text is None:
            continue
        if not INTEGER.fullmatch(text):
            raise api_errors.bad_request(f'strconv.ParseInt: parsing "{text[:40]}": invalid syntax')
        if int(text) < least:
            yield invalid_value(
                name, int(text), "must be greater than 0" if least else "must be greater than or equal to 0"
            )
    if "sinceSeconds" in query and "sinceTime" in query:
        yield forbidden_field("", "at most one of `sinceTime` or `sinceSeconds` may be specified")


def log_query(query: Query) -> dict[str, str]:
    """What the kubelet is told of what was asked."""
    found = {name: "true" for name in BOOLEAN_OPTIONS if query.get(name) in TRUE_VALUES}
    return found | {name: query[name] for name in (*NUMBER_MINIMUMS, "sinceTime") if query.get(name)}


def kubelet_error(target: Target, code: int, body: bytes) -> ApiError:
    """What a kubelet refuses, passed on."""
    text = body.decode("utf-8", "replace").strip()
    if code == 500:
        return api_errors.internal_error(text)
    if code == 400:
        return api_errors.bad_request(text)
    reason = "NotFound" if code == 404 else "Unknown"
    message = f"{response_error_text(code, body)} ( {target.info.resource.plural}/{target.subresource} {target.name})"
    return error_from_status({"reason": reason, "message": message}, code=code)

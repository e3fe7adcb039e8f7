"""CAs by which the kubelet API of virtual nodes verifies the certificates of its clients.

They are in a file, or published by the API server.  Published ones are reloaded when they change.
"""

import ssl
from dataclasses import dataclass, field
from functools import partial

from tapestry.client.client import Client
from tapestry.kube.errors import Forbidden, NotFound
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS
from tapestry.nodeproxy.serving_certificate import ServingCertificate
from tapestry.process.logs import logger

log = logger(__name__)

AUTHENTICATION_NAMESPACE, AUTHENTICATION_CONFIGMAP = "kube-system", "extension-apiserver-authentication"
"""ConfigMap in which API servers publish the CAs of their clients."""


def kubelet_tls(client_ca: str, published_cas: str) -> ssl.SSLContext:
    """Return a TLS context without a certificate.

    Client certificates are verified by the CAs in the file `client_ca`, or else by `published_cas`.  Raise ssl.SSLError
    if there are none in it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca or published_cas:
        context.load_verify_locations(client_ca or None, cadata=None if client_ca else published_cas)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_cas_in(configmap: Object) -> str:
    """Return the client CAs without characters that are not ASCII, which the ssl module rejects even in comments."""
    found: str = value_at(configmap, "data", "client-ca-file", default="")
    return found.encode("ascii", "ignore").decode()


async def published_client_cas(client: Client) -> str:
    """Return the client CAs that the API server publishes, or "" if it publishes none."""
    try:
        authorities = client_cas_in(await client.get(CONFIGMAPS, AUTHENTICATION_CONFIGMAP, AUTHENTICATION_NAMESPACE))
    except (NotFound, Forbidden):
        authorities = ""
    if not authorities:
        log.warning(
            "client certificates disabled: no client CA published; set kubelet.clientCa",
            missing=AUTHENTICATION_CONFIGMAP,
        )
    return authorities


@dataclass
class PublishedClientCas:
    """The published CAs by which a server verifies its clients."""

    serving: ServingCertificate
    _used: str = field(default="", init=False)

    def use(self, authorities: str) -> None:
        """Verify new connections with these CAs.  As in Kubernetes, none or invalid ones change nothing."""
        if authorities in ("", self._used):
            return
        try:
            self.serving.verify_clients(partial(kubelet_tls, "", authorities))
        except ssl.SSLError as error:
            log.warning("client CAs not loaded, keeping the previous ones", error=str(error))
        else:
            self._used = authorities
            log.info("client CAs loaded")

    def on_change(self, _: Object | None, configmap: Object | None) -> None:
        """Use the CAs in a changed ConfigMap."""
        self.use(client_cas_in(configmap) if configmap is not None else "")

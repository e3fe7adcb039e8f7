"""Kubelet API of a syncer's virtual nodes: assembly of the server, its certificate and the published address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tapestry.apis.names import syncer_name
from tapestry.apis.serving_certificates import service_names
from tapestry.client.delegated_auth import CachedAuth
from tapestry.controller import Informer
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, SECRETS, SERVICES
from tapestry.nodeproxy.certificate_rotation import CertificateRotation, key_pair_in_files, key_pair_in_secret
from tapestry.nodeproxy.client_cas import (
    AUTHENTICATION_CONFIGMAP,
    AUTHENTICATION_NAMESPACE,
    PublishedClientCas,
    kubelet_tls,
    published_client_cas,
)
from tapestry.nodeproxy.kubelet import KubeletServer, serve_kubelet
from tapestry.nodeproxy.logs import LogRelay
from tapestry.nodeproxy.serving_certificate import KeyPair, ServingCertificate, self_signed_pair
from tapestry.nodeproxy.sessions import Sessions
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.nodeproxy.usage import UsageReader
from tapestry.process.addresses import parse_address
from tapestry.process.logs import logger
from tapestry.syncer.bottomup.nodes import KubeletState
from tapestry.syncer.components import Syncer
from tapestry.syncer.config import Kubelet
from tapestry.syncer.virtual_nodes import Endpoint
from tapestry.tenants.twin_usage import usage_source

log = logger(__name__)

SYNC_TIMEOUT = 10.0
"""Seconds to wait for the Service and the Secret before a certificate is requested."""
CERTIFICATE_EXPIRES = "ServingCertificateExpires"


@asynccontextmanager
async def serve_node_proxy(parts: Syncer) -> AsyncIterator[None]:
    """Serve the kubelet API of the virtual nodes and publish its address in their status.

    Standbys serve it, too: their caches are current.
    """
    config, virtual = parts.config.kubelet, parts.clients.virtual_reads
    address = parse_address(config.address)
    if address is None:
        yield
        return
    provided = ProvidedCertificate(config, secret_informer(parts))
    pair = provided.in_files() or self_signed_pair([address.host])
    serving = ServingCertificate(partial(kubelet_tls, config.client_ca, ""), pair)
    if not config.client_ca:
        published_cas = PublishedClientCas(serving)
        published_cas.use(await published_client_cas(virtual))
        client_ca_informer(parts).on_change(published_cas.on_change)
    twins, manager = TwinLookup(parts.caches.pod_on_our_nodes, parts.caches.twin_of_pod), parts.manager
    sessions = Sessions(twins, manager.audit, manager.identity)
    manager.run_always("stream-sessions", sessions.watch)
    manager.on_loss(lambda: sessions.end_all("the process lost the leadership"))
    physical, _ = parts.transports
    streams = StreamRelay(twins, physical.upgrade, sessions)
    logs, usage = (
        LogRelay(twins, parts.clients.physical_reads),
        UsageReader(usage_source(parts, parts.clients.physical_reads), manager.now),
    )
    kubelet = KubeletServer(CachedAuth(virtual), twins, logs, streams, usage)
    async with serve_kubelet(kubelet, address, serving.context) as at:
        published = PublishedAddress(Endpoint(at.host, at.port), service_informer(parts))
        published.publish_to(parts.kubelet)

        async def rotate() -> None:
            await rotate_certificate(parts, serving, published, provided)

        parts.manager.run_always("serving-certificate", rotate)
        yield


async def rotate_certificate(
    parts: Syncer, serving: ServingCertificate, published: "PublishedAddress", provided: "ProvidedCertificate"
) -> None:
    """Keep the serving certificate current until cancelled."""
    await parts.caches.bindings.synced.wait()
    with suppress(TimeoutError):  # without permission on the Secret, there is none
        async with asyncio.timeout(SYNC_TIMEOUT):
            for informer in filter(None, (published.service, provided.secret)):
                await informer.synced.wait()
    binding = parts.current_binding.object()
    if binding is not None:
        syncer, report = syncer_name(binding["spec"]["clusterID"]), partial(report_expiry, parts)
        client, now = parts.clients.virtual_reads, parts.manager.now
        rotation = CertificateRotation(serving, syncer, published.names, provided.pair, client, report, now)
        for informer in filter(None, (published.service, provided.secret)):
            informer.on_change(lambda _old, _new: rotation.changed.set())
        await rotation.run()


def service_informer(parts: Syncer) -> Informer | None:
    """Return the informer of the configured Service.  Work begins when its address is known."""
    namespace, _, name = parts.config.kubelet.service.partition("/")
    fields = f"metadata.name={name}"
    return parts.manager.informer(SERVICES, namespace=namespace, fields=fields, filtered=False) if name else None


def secret_informer(parts: Syncer) -> Informer | None:
    """Return the informer of the configured Secret.  Nothing waits for it: it is optional, and so is the permission."""
    namespace, _, name = parts.config.kubelet.secret.partition("/")
    if not name:
        return None
    informer = Informer(parts.clients.virtual_reads, SECRETS, namespace=namespace, fields=f"metadata.name={name}")
    return parts.manager.add_optional_informer(informer)


def client_ca_informer(parts: Syncer) -> Informer:
    """Return the informer of the published client CAs.  Nothing waits for it: they were read before."""
    place, fields = AUTHENTICATION_NAMESPACE, f"metadata.name={AUTHENTICATION_CONFIGMAP}"
    informer = Informer(parts.clients.virtual_reads, CONFIGMAPS, namespace=place, fields=fields)
    return parts.manager.add_optional_informer(informer)


@dataclass(frozen=True)
class PublishedAddress:
    """Address of the kubelet API that virtual nodes show: of a Service, or without one, of this process."""

    own: Endpoint
    service: Informer | None

    def found(self) -> Object | None:
        """Return the Service, if it has an address."""
        services = self.service.store.list() if self.service is not None else ()
        return next((each for each in services if has_address(each)), None)

    def endpoint(self) -> Endpoint:
        service = self.found()
        return service_endpoint(service) if service is not None else self.own

    def names(self) -> frozenset[str]:
        """Return the names and addresses for the serving certificate."""
        service = self.found()
        return service_names(service) if service is not None else frozenset({self.own.host})

    def publish_to(self, state: KubeletState) -> None:
        """Publish the address, and again when the Service changes."""
        if self.service is None:
            state.publish(self.own)
            return
        self.service.on_change(lambda _old, _new: state.publish(self.endpoint()))
        self.service.after_sync(lambda: state.publish(self.endpoint()))


def has_address(service: Object) -> bool:
    return value_at(service, "spec", "clusterIP", default="None") not in ("", "None")


def service_endpoint(service: Object) -> Endpoint:
    ports = value_at(service, "spec", "ports", default=[])
    port = next((each["port"] for each in ports if each.get("name") == "kubelet"), ports[0]["port"])
    return Endpoint(service["spec"]["clusterIP"], port)


@dataclass(frozen=True)
class ProvidedCertificate:
    """Serving certificate that the operator provides, in files or in a Secret."""

    config: Kubelet
    secret: Informer | None

    def pair(self) -> KeyPair | None:
        secrets = self.secret.store.list() if self.secret is not None else ()
        return self.in_files() or next(filter(None, map(key_pair_in_secret, secrets)), None)

    def in_files(self) -> KeyPair | None:
        config = self.config
        return key_pair_in_files(Path(config.certificate), Path(config.key)) if config.certificate else None


def report_expiry(parts: Syncer, message: str) -> None:
    """Log that the certificate expires soon.  The leader also records an event."""
    log.warning("serving certificate expires soon", error=message)
    binding, elector = parts.current_binding.object(), parts.manager.elector
    if binding is not None and (elector is None or elector.is_leading):
        parts.clients.events.warning(binding, CERTIFICATE_EXPIRES, message)

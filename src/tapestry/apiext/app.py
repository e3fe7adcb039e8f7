"""Process of `tapestry apiext`: credentials, listening address and shutdown."""

from collections.abc import Mapping
from pathlib import Path

from tapestry.apiext.caller_credentials import access_for_callers
from tapestry.apiext.config import ApiExtConfig
from tapestry.apiext.http import ApiExtHandler, serve_http
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.process.addresses import parse_address
from tapestry.process.logs import logger
from tapestry.process.probes import server_tls
from tapestry.process.signals import stop_event

log = logger(__name__)


async def run_apiext(config: ApiExtConfig, environ: Mapping[str, str], home: Path) -> None:
    """Serve until SIGTERM or SIGINT; raise ValueError or OSError if startup fails."""
    stopping = stop_event()
    own = default_access(
        Path(config.kubeconfig) if config.kubeconfig else None, config.context or None, environ=environ, home=home
    )
    transport = HttpTransport(own if config.own_identity else access_for_callers(own))
    front = ApiExtHandler(
        RestApi(ResourceMapper(config.kinds)), transport, own_identity=config.own_identity, origins=config.allow_origins
    )
    address = parse_address(config.listen)
    assert address is not None, "checked by the configuration"
    tls = server_tls(config.tls.certificate, config.tls.key) if config.tls.certificate else None
    try:
        async with serve_http(front, address, tls) as at:
            log.info("apiext server listening", address=str(at), server=own.server, ownIdentity=config.own_identity)
            await stopping.wait()
    finally:
        await transport.close()

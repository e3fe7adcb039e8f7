"""`tapestry apiext` as a process: whose kubeconfig, which door, and an orderly end."""

from collections.abc import Mapping
from pathlib import Path

from tapestry.apiext.callers import forwarding
from tapestry.apiext.config import ApiExtConfig
from tapestry.apiext.http import Front, serving
from tapestry.apiext.kinds import Kinds
from tapestry.apiext.plain import PlainApi
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.process.addresses import parse_address
from tapestry.process.logs import logger
from tapestry.process.probes import server_tls
from tapestry.process.signals import told_to_stop

log = logger(__name__)


async def run_apiext(config: ApiExtConfig, environ: Mapping[str, str], home: Path) -> None:
    """Serve until SIGTERM or SIGINT; raises ValueError or OSError where that cannot begin."""
    stopping = told_to_stop()
    own = default_access(
        Path(config.kubeconfig) if config.kubeconfig else None, config.context or None, environ=environ, home=home
    )
    transport = HttpTransport(own if config.own_identity else forwarding(own))
    front = Front(
        PlainApi(Kinds(config.kinds)), transport, own_identity=config.own_identity, origins=config.allow_origins
    )
    address = parse_address(config.listen)
    assert address is not None, "the configuration has seen to it"
    tls = server_tls(config.tls.certificate, config.tls.key) if config.tls.certificate else None
    try:
        async with serving(front, address, tls) as at:
            log.info("serving", address=str(at), server=own.server, ownIdentity=config.own_identity)
            await stopping.wait()
    finally:
        await transport.close()

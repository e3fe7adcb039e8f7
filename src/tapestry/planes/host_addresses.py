"""Addresses of the operator's own services, to which no object of a plane can make the process connect.

They are etcd, the listener of planes, and the API server of the cluster in which the process runs. Loopback addresses
need no entry: planes cannot use them unless the operator allows it.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import structs

from tapestry.planes.config import PlanesConfig
from tapestry.planes.endpoints import server_names
from tapestry.process.logs import logger

log = logger(__name__)

API_SERVER_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Environment variable of pods with the address of the API server."""


async def with_denied_host_addresses(config: PlanesConfig, environ: Mapping[str, str]) -> PlanesConfig:
    """Return the configuration with these addresses in `egress_denied_cidrs`.

    An address that `egress_allowed_cidrs` names itself, not as a part of a larger range, is not added.
    """
    hosts = [urlsplit(each).hostname or "" for each in config.etcd.servers]
    hosts += [*server_names(config), environ.get(API_SERVER_VARIABLE, "")]
    found = [await addresses_of(each) for each in dict.fromkeys(hosts) if each]
    networks = dict.fromkeys(str(ipaddress.ip_network(each)) for addresses in found for each in addresses)
    denied = [each for each in networks if each not in config.egress_allowed_cidrs]
    return structs.replace(config, egress_denied_cidrs=[*config.egress_denied_cidrs, *denied])


async def addresses_of(host: str) -> list[str]:
    """Return the addresses of a host that are not loopback addresses; none if its name cannot be resolved."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        log.warning("address of a service of the operator unknown", host=host, error=str(error))
        return []
    addresses = sorted({str(address[0]).partition("%")[0] for *_, address in found})
    return [each for each in addresses if not ipaddress.ip_address(each).is_loopback]

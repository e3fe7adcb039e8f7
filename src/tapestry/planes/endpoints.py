"""Addresses of the planes of a process."""

from dataclasses import dataclass
from pathlib import Path

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.planes.config import PlanesConfig
from tapestry.planes.kubeconfigs import PlaneEndpoint
from tapestry.planes.plane_keys import held_plane, unavailable
from tapestry.planes.plane_names import PlaneNames
from tapestry.planes.plane_ports import PlanePorts
from tapestry.planes.plane_set import PlaneSet
from tapestry.process.addresses import parse_address

ANY_HOSTS = ("", "0.0.0.0", "::")
"""Hosts of listeners on all addresses."""


@dataclass(frozen=True)
class Endpoints:
    """Addresses of planes at the listener of this process."""

    config: PlanesConfig
    names: PlaneNames
    port: int
    planes: PlaneSet
    ports: PlanePorts
    pki: Path
    """Folder of the CA of the listener."""

    @property
    def base_url(self) -> str:
        """URL of the listener of all planes."""
        return self._url_of(self.port)

    def _url_of(self, port: int) -> str:
        """Return a URL with a host name of the certificates that other machines can reach, if there is one."""
        host = next(iter(server_names(self.config)), "127.0.0.1")
        return f"https://{f'[{host}]' if ':' in host else host}:{port}"

    def url(self, plane_id: str) -> str:
        """Return the URL that selects a plane by its path."""
        return f"{self.base_url}/planes/{plane_id}"

    def endpoint(self, plane_id: str, *, by_path: bool = False, own_port: bool = False) -> PlaneEndpoint:
        """Return the endpoint of a plane. Raises Unavailable if this process does not hold it or has no port for it."""
        if by_path:
            authority = CertificateAuthority(self.pki)
            return PlaneEndpoint(self.url(plane_id), authority.certificate_pem())
        authority = CertificateAuthority(Path(held_plane(self.planes, plane_id).config.file_rootpath) / "pki")
        if own_port:
            port = self.ports.port_of(plane_id)
            if port is None:
                raise unavailable("the plane has no port of its own; status.portMessage, or --port-range, tells why")
            return PlaneEndpoint(self._url_of(port), authority.certificate_pem())
        return PlaneEndpoint(self.base_url, authority.certificate_pem(), self.names.server_name(plane_id))


def server_names(config: PlanesConfig) -> list[str]:
    """Return the names and addresses of the listeners, in addition to those of this machine."""
    address = parse_address(config.address)
    host = address.host if address is not None else ""
    return [*([] if host in ANY_HOSTS else [host]), *config.server_names]

"""Addresses of the planes of a process."""

from dataclasses import dataclass
from pathlib import Path

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.planes.config import PlanesConfig
from tapestry.planes.kubeconfigs import PlaneEndpoint
from tapestry.planes.plane_keys import held_plane
from tapestry.planes.plane_names import PlaneNames
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

    @property
    def base_url(self) -> str:
        """URL of the listener, with a host name of its certificates that other machines can reach, if there is one."""
        address = parse_address(self.config.address)
        host = address.host if address is not None else ""
        if host in ANY_HOSTS:
            host = next(iter(self.config.server_names), "127.0.0.1")
        return f"https://{f'[{host}]' if ':' in host else host}:{self.port}"

    def url(self, plane_id: str) -> str:
        """Return the URL that selects a plane by its path."""
        return f"{self.base_url}/planes/{plane_id}"

    def endpoint(self, plane_id: str, *, by_path: bool = False, own_port: bool = False) -> PlaneEndpoint:
        """Return the endpoint of a plane. Raises Unavailable if this process does not hold it."""
        if by_path:
            authority = CertificateAuthority(self.config.folder / "pki")
            return PlaneEndpoint(self.url(plane_id), authority.certificate_pem())
        authority = CertificateAuthority(Path(held_plane(self.planes, plane_id).config.file_rootpath) / "pki")
        return PlaneEndpoint(self.base_url, authority.certificate_pem(), self.names.server_name(plane_id))

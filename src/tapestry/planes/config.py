"""Configuration of a process that holds planes, and of the API server of each plane."""

from pathlib import Path
from typing import Literal

from msgspec import field, structs

from tapestry.apis.planes import Backend, PlaneSpec
from tapestry.apiserver.core.config import ApiServerConfig, Egress, Etcd
from tapestry.apiserver.core.egress import parse_networks
from tapestry.kube.names import dns_subdomain_error
from tapestry.planes.plane_limits import limited_config
from tapestry.process.addresses import parse_address
from tapestry.process.config import Section
from tapestry.process.logs import Format, Level

MAX_PORT = 65535


class PlanesConfig(Section, frozen=True):
    """All options of `tapestry planes run`."""

    data: str = "tapestry-planes"
    """Folder of the planes, of the management API, and of the certificates of this process."""
    name: str = ""
    """Name of this process among those that share the management API; the host name by default."""
    named_only: bool = False
    """Hold only planes whose `spec.process` is this process, for example a single plane that needs a process of its
    own."""
    address: str = "127.0.0.1:6444"
    """Address for HTTPS of all planes and of the management API."""
    domain: str = "tapestry.local"
    """Domain of the planes: a plane is `ID.planes.DOMAIN`."""
    server_names: list[str] = field(default_factory=list)
    """Additional host names and addresses for the serving certificates."""
    port_range: str = ""
    """Ports that planes get for themselves, as FIRST-LAST, on the host of the address. By default, they get none."""
    dns_port_range: str = ""
    """Ports of the DNS resolvers of planes whose pods run in host clusters, as FIRST-LAST, on the host of the address.
    By default, these pods have no names of the plane."""
    backend: Literal["file", "etcd"] = "file"
    """Storage of the management API: a file of this process, or etcd, which several processes share."""
    etcd: Etcd = Etcd(prefix="/tapestry")
    """Connection to etcd for the management API and for planes in etcd."""
    group_key: str = ""
    """File with the key that seals the private keys of planes in etcd. All processes of a group need the same file. It
    is created if it is missing; by default, it is `group.key` in the data folder."""
    egress_allowed_cidrs: list[str] = field(default_factory=list)
    """Ranges of kubelets and pods of planes, and ranges for webhooks and APIServices of planes that are excluded
    otherwise: addresses of this machine and of metadata services. An address that is denied by default is allowed only
    if it is named itself, as 192.0.2.1/32."""
    egress_denied_cidrs: list[str] = field(default_factory=list)
    """Ranges to which no object of a plane can make this process connect. The addresses of `etcd.servers`, of `address`
    and `serverNames`, and of KUBERNETES_SERVICE_HOST are added when the process starts."""
    log_level: Level = "info"
    log_format: Format = "auto"

    def __post_init__(self) -> None:
        if (address := parse_address(self.address)) is None:
            raise ValueError("address: planes need an address to listen on")
        if address.port in self.own_ports:
            raise ValueError(f"portRange: {self.port_range} contains port {address.port} of all planes; exclude it")
        dns_ports = self.dns_ports
        if address.port in dns_ports or set(dns_ports) & set(self.own_ports):
            raise ValueError(f"dnsPortRange: {self.dns_port_range} contains ports of APIs; use other ports")
        if (error := dns_subdomain_error(self.domain)) is not None:
            raise ValueError(f"domain: {self.domain!r} {error}")
        if self.name and (error := dns_subdomain_error(self.name)) is not None:
            raise ValueError(f"name: {self.name!r} {error}")
        parse_networks(self.egress_allowed_cidrs, "egressAllowedCidrs")
        parse_networks(self.egress_denied_cidrs, "egressDeniedCidrs")

    @property
    def own_ports(self) -> range:
        """Ports for single planes. Raises ValueError if the range is malformed."""
        return parse_port_range(self.port_range, "portRange")

    @property
    def dns_ports(self) -> range:
        """Ports for DNS resolvers. Raises ValueError if the range is malformed."""
        return parse_port_range(self.dns_port_range, "dnsPortRange")

    @property
    def folder(self) -> Path:
        return Path(self.data)

    @property
    def kubeconfig_file(self) -> Path:
        """Kubeconfig of the management API, for administrators."""
        return self.folder / "kubeconfig"

    @property
    def admin_token_file(self) -> Path:
        return self.folder / "admin-token"

    @property
    def uses_etcd(self) -> bool:
        return bool(self.etcd.servers)

    @property
    def management_folder(self) -> Path:
        return self.folder / "management"

    @property
    def planes_folder(self) -> Path:
        return self.folder / "planes"

    @property
    def group_key_file(self) -> Path:
        return Path(self.group_key) if self.group_key else self.folder / "group.key"


def parse_port_range(text: str, field: str) -> range:
    """Return the ports of a range; none if it is empty. Raise ValueError with the name of the field."""
    if not text:
        return range(0)
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= MAX_PORT):
        raise ValueError(f"{field}: {text!r} is not FIRST-LAST with ports from 1 to {MAX_PORT}, as 7000-7999")
    return range(int(first), int(last) + 1)


def management_server_config(config: PlanesConfig) -> ApiServerConfig:
    """Return the configuration of the API server of the management API."""
    return ApiServerConfig(
        backend=config.backend,
        etcd=structs.replace(config.etcd, prefix=f"{config.etcd.prefix}/management"),
        file_rootpath=str(config.management_folder),
        anonymous_auth=False,
    )


def planes_prefix(config: PlanesConfig) -> Etcd:
    """Return the prefix of all planes in etcd."""
    return structs.replace(config.etcd, prefix=f"{config.etcd.prefix}/planes")


def plane_storage_config(config: PlanesConfig, plane_id: str, backend: Backend) -> ApiServerConfig:
    """Return a configuration that only tells where the data of a plane is."""
    planes = planes_prefix(config)
    return ApiServerConfig(
        backend=backend,
        etcd=structs.replace(planes, prefix=f"{planes.prefix}/{plane_id}"),
        file_rootpath=str(config.planes_folder / plane_id),
    )


def plane_server_config(config: PlanesConfig, plane_id: str, spec: PlaneSpec) -> ApiServerConfig:
    """Return the configuration of the API server of a plane. Raises ValueError for invalid limits."""
    own = structs.replace(
        plane_storage_config(config, plane_id, spec.backend),
        secure_address=config.address,
        controllers=list(spec.controllers),
        audit_log_path=str(config.planes_folder / plane_id / "audit.log"),
        egress=Egress(allowed_cidrs=config.egress_allowed_cidrs, denied_cidrs=config.egress_denied_cidrs),
    )
    return limited_config(own, spec.limits)

"""Configuration of the service of virtual clusters."""

from pathlib import Path
from typing import Literal

from tapestry.process.addresses import parse_address
from tapestry.process.config import Section


class ServiceConfig(Section, frozen=True):
    """Listeners of the service of virtual clusters. Without any, there is no service."""

    rest_address: str = ""
    """Address for REST, for example 127.0.0.1:8088."""
    grpc_address: str = ""
    """Address for gRPC, for example 127.0.0.1:50051."""
    grpc_mtls_address: str = ""
    """Address for gRPC with client certificates."""
    client_config: str = ""
    """File for the configuration of `tapestry vc` with the first access key, which is not printed then."""
    shared_folder: str = ""
    """Folder with the snapshots and the audit records of all processes of a group; the data folder by default."""
    compat_plaintext: bool = False
    """Serve clients of the published contract on this machine without TLS and credentials, with all rights."""
    isolation_mode: Literal["full", "lite"] = "full"
    """Isolation mode of new virtual clusters that request none."""

    def __post_init__(self) -> None:
        if self.client_config and (self.compat_plaintext or not self.rest_address):
            raise ValueError("clientConfig: needs restAddress, and excludes compatPlaintext")
        for text in (self.rest_address, self.grpc_address) if self.compat_plaintext else ():
            address = parse_address(text)
            if address is not None and not address.is_loopback:
                raise ValueError(f"compatPlaintext: {text} is not an address of this machine only, as 127.0.0.1:50051")

    def shared_path(self, data: Path) -> Path:
        """Return the folder of snapshots and audit records of a process with this data folder."""
        return Path(self.shared_folder) if self.shared_folder else data

    @property
    def is_enabled(self) -> bool:
        return bool(self.rest_address or self.grpc_address or self.grpc_mtls_address)

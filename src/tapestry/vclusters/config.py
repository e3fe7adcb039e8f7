"""Configuration of the service of virtual clusters."""

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

    @property
    def is_enabled(self) -> bool:
        return bool(self.rest_address or self.grpc_address or self.grpc_mtls_address)

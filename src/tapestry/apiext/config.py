"""Configuration of the plain REST API, in `tapestry apiext` and in `tapestry hub`."""

from msgspec import field

from tapestry.process.addresses import parse_address
from tapestry.process.config import Section
from tapestry.process.logs import Format, Level


class Tls(Section, frozen=True):
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key belong together")


class ServerConfig(Section, frozen=True):
    """Address and callers of the server."""

    listen: str = "127.0.0.1:6090"
    """Address to serve on; any address other than loopback requires TLS because callers send tokens."""
    kinds: list[str] = field(default_factory=lambda: ["*"])
    """Names and globs of the kinds to serve: `users`, `*.example.com`."""
    allow_origins: list[str] = field(default_factory=list)
    """Origins whose web pages may call the API."""
    own_identity: bool = False
    """Serve callers without credentials with those of the kubeconfig; on loopback only."""
    tls: Tls = Tls()

    def __post_init__(self) -> None:
        address = parse_address(self.listen)
        if address is None:
            raise ValueError("listen: an empty address cannot be served; set HOST:PORT")
        if not address.is_loopback and self.own_identity:
            raise ValueError(f"listen: {address} is not on loopback, and ownIdentity would admit everyone; remove one")
        if not address.is_loopback and not self.tls.certificate:
            raise ValueError(
                f"listen: {address} is not on loopback, and tokens need TLS; set tls.certificate and tls.key"
            )
        if not self.kinds:
            raise ValueError("kinds: an empty list serves nothing; omit it to serve all kinds")
        for origin in self.allow_origins:
            if "://" not in origin or origin.endswith("/"):
                raise ValueError(f"allowOrigins: {origin!r} is not an origin; write it as https://example.com:8443")


class ApiExtConfig(ServerConfig, frozen=True):
    """Configuration of `tapestry apiext`."""

    kubeconfig: str = ""
    context: str = ""
    log_level: Level = "info"
    log_format: Format = "auto"

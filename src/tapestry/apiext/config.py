"""The configuration of `tapestry apiext`."""

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


class ApiExtConfig(Section, frozen=True):
    """Everything `tapestry apiext` can be told."""

    kubeconfig: str = ""
    context: str = ""
    listen: str = "127.0.0.1:6090"
    """Where to serve; off loopback only over TLS, for callers show their tokens."""
    kinds: list[str] = field(default_factory=lambda: ["*"])
    """Names and globs of the kinds that are shown: `users`, `*.example.com`."""
    allow_origins: list[str] = field(default_factory=list)
    """Origins whose pages may call from a browser."""
    own_identity: bool = False
    """Whether callers without credentials have the rights of the kubeconfig; on loopback only."""
    tls: Tls = Tls()
    log_level: Level = "info"
    log_format: Format = "auto"

    def __post_init__(self) -> None:
        address = parse_address(self.listen)
        if address is None:
            raise ValueError("listen: nowhere is no place to serve; give HOST:PORT")
        if not address.is_loopback and self.own_identity:
            raise ValueError(f"listen: {address} is not on loopback, where ownIdentity would let anybody in; drop one")
        if not address.is_loopback and not self.tls.certificate:
            raise ValueError(
                f"listen: {address} is not on loopback, where tokens need TLS; give tls.certificate and key"
            )
        if not self.kinds:
            raise ValueError("kinds: an empty list shows nothing; leave it out for all")
        for origin in self.allow_origins:
            if "://" not in origin or origin.endswith("/"):
                raise ValueError(f"allowOrigins: {origin!r} is no origin; write one as https://example.com:8443")

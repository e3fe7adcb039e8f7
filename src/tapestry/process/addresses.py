"""Listen addresses in configuration."""

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """A listen address.  An empty host means all interfaces, port 0 any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # another name, or all interfaces
            return False


def parse_address(text: str) -> Address | None:
    """Parse `127.0.0.1:8080`, `[::1]:8080` or `:8080`.  Return None for an empty text or `0`: do not listen."""
    if text in ("", "0"):
        return None
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and bare == host):
        raise ValueError(f"{text!r}: expected HOST:PORT, [IPV6]:PORT or :PORT with a port of 0 to 65535")
    return Address(bare, int(port))

"""Negotiation of the protocol of an upgraded connection."""

from collections.abc import Mapping, Sequence

PROTOCOL_HEADER = "X-Stream-Protocol-Version"
SPDY = "SPDY/3.1"
MAX_PROTOCOLS = 32


class UpgradeRejected(Exception):
    """The server does not accept an upgrade; the message is for the client."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def header_values(value: str) -> list[str]:
    """Return the values of a header that is a list separated by commas."""
    return [stripped for part in value.split(",", MAX_PROTOCOLS)[:MAX_PROTOCOLS] if (stripped := part.strip())]


def first_common(requested: Sequence[str], supported: Sequence[str]) -> str | None:
    """Return the first requested protocol that is supported."""
    return next((each for each in requested if each in supported), None)


def spdy_handshake(header_pairs: Sequence[tuple[str, str]], supported: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the negotiated protocol and the headers of the response; raise UpgradeRejected.

    Clients send one header for each protocol. `header_pairs` have names in lower case.
    """
    name = PROTOCOL_HEADER.lower()
    requested = header_values(",".join(value for key, value in header_pairs if key == name))
    if not requested:
        raise UpgradeRejected(400, f"unable to upgrade: {PROTOCOL_HEADER} is required")
    protocol = first_common(requested, supported)
    if protocol is None:
        lists = f"client supports {', '.join(requested)}, server accepts {', '.join(supported)}"
        raise UpgradeRejected(
            403,
            f"unable to upgrade: unable to negotiate protocol: {lists}",
            {"X-Accepted-Stream-Protocol-Versions": ", ".join(supported)},
        )
    return protocol, {"Upgrade": SPDY, PROTOCOL_HEADER: protocol}

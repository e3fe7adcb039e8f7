"""Translation of WebSocket clients to SPDY servers, for kubelets that only support SPDY.

kube-apiserver does the same for clients of `v5.channel.k8s.io` and `SPDY/3.1+portforward.k8s.io`.
"""

from tapestry.streams.connection import Connection
from tapestry.streams.remote_command import RequestedStreams
from tapestry.streams.tunnel import Transferred


async def translate_remote_command(
    client: Connection, subprotocol: str, backend: Connection, streams: RequestedStreams, transferred: Transferred
) -> None:
    """Connect exec or attach of a WebSocket client to a SPDY server, until either side ends the session.

    Both connections are upgraded: `subprotocol` of the client is `v5.channel.k8s.io` or `v4.channel.k8s.io`, and the
    server has accepted `X-Stream-Protocol-Version: v4.k8s.io`. Both are closed when this returns.
    """
    raise NotImplementedError


async def translate_port_forward(client: Connection, backend: Connection, transferred: Transferred) -> None:
    """Connect a WebSocket client of `SPDY/3.1+portforward.k8s.io` to a SPDY server, until either side ends.

    Both connections are upgraded, and closed when this returns.
    """
    raise NotImplementedError

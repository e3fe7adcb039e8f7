"""Remote command protocols of exec and attach, over WebSocket and SPDY."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestedStreams:
    """Streams that a client requests in the query of exec or attach; a terminal has no stderr of its own."""

    stdin: bool
    stdout: bool
    stderr: bool
    terminal: bool

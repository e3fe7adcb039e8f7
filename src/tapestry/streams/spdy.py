"""The SPDY/3.1 protocol without I/O, as far as kubelets and kubectl use it.

    events = protocol.receive_data(data)  # raises SpdyError: send `data_to_send()` and close the connection
    output = protocol.data_to_send() + protocol.data_frame(stream_id, b"hello")

Kubernetes uses the library moby/spdystream, which differs from the specification (draft-mbelshe-httpbis-spdy-00 and
the notes on SPDY/3.1): it neither sends nor honors WINDOW_UPDATE and SETTINGS. So there is no flow control per stream,
and a peer is slowed down by not reading its connection. Stream priorities have no meaning.

Input is untrusted. Control frames and headers have a maximum size, and the payload of data frames is passed on as it
arrives, whatever length the frame has.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tapestry.streams.spdy_dictionary import HEADER_DICTIONARY

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FLAG_FIN, FLAG_UNIDIRECTIONAL = 1, 2

PROTOCOL_ERROR, REFUSED_STREAM, CANCEL, STREAM_ALREADY_CLOSED = 1, 3, 5, 9
"""Status codes of RST_STREAM."""
GOAWAY_OK, GOAWAY_PROTOCOL_ERROR = 0, 1

MAX_CONTROL_BYTES = 1 << 14
"""Maximum size of a control frame in bytes."""
MAX_HEADER_BYTES = 1 << 13
"""Maximum size of the headers of a stream in bytes, decompressed."""
MAX_STREAMS = 1024
"""Maximum number of streams that the peer may have open; others are refused."""
MAX_STREAM_ID = 0x7FFFFFFF

FRAME = struct.Struct("!II")
WORD = struct.Struct("!I")
TWO_WORDS = struct.Struct("!II")
SYN_STREAM_FIELDS = struct.Struct("!IIH")


class SpdyError(ConnectionError):
    """The peer violates the protocol; the connection is useless afterwards."""


class StreamOpened(NamedTuple):
    """The peer opened a stream, which needs a reply or a reset. Names of headers are in lower case."""

    stream_id: int
    headers: Mapping[str, str]


class StreamReplied(NamedTuple):
    stream_id: int


class DataReceived(NamedTuple):
    stream_id: int
    data: bytes


class StreamEnded(NamedTuple):
    """The peer sends no more on this stream."""

    stream_id: int


class StreamReset(NamedTuple):
    """The peer closed the stream in both directions."""

    stream_id: int


class GoneAway(NamedTuple):
    """The peer closes the connection when its streams are closed."""


Event = StreamOpened | StreamReplied | DataReceived | StreamEnded | StreamReset | GoneAway


@dataclass(slots=True)
class StreamState:
    """Half-closed directions of an open stream."""

    is_replied: bool
    is_ended: bool = False
    is_ended_by_peer: bool = False


class SpdyProtocol:
    """One side of a SPDY connection."""

    def __init__(self, *, is_server: bool) -> None:
        self._streams: dict[int, StreamState] = {}
        self._parity = 0 if is_server else 1
        """Parity of the stream and ping IDs of this side."""
        self._next_id = 2 if is_server else 1
        self._next_ping = self._next_id
        self._last_peer_id = 0
        self._compressor = zlib.compressobj(wbits=11, memLevel=5, zdict=HEADER_DICTIONARY)  # 24 KiB of memory
        self._decompressor = zlib.decompressobj(zdict=HEADER_DICTIONARY)
        self._unparsed = b""
        """Start of an incomplete frame: its head, or a control frame."""
        self._data_frame: tuple[int, int] | None = None
        """Stream and flags of a data frame whose payload is arriving."""
        self._data_left = 0
        self._output: list[bytes] = []
        self._handlers: dict[int, Callable[[int, bytes, list[Event]], None]] = {
            SYN_STREAM: self._on_syn_stream,
            SYN_REPLY: self._on_syn_reply,
            RST_STREAM: self._on_rst_stream,
            SETTINGS: self._on_ignored,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            HEADERS: self._on_headers,
            WINDOW_UPDATE: self._on_ignored,
        }

    # -- sending

    def data_to_send(self) -> bytes:
        """Return the frames that answer received ones."""
        result = b"".join(self._output)
        self._output.clear()
        return result

    def open_stream(self, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the ID of a new stream and the frame that opens it. Send no data before the peer has replied."""
        stream_id = self._next_id
        if stream_id > MAX_STREAM_ID:
            raise ConnectionAbortedError("the SPDY connection has no more stream IDs")
        self._next_id += 2
        self._streams[stream_id] = StreamState(is_replied=False)
        return stream_id, self._control(
            SYN_STREAM, 0, SYN_STREAM_FIELDS.pack(stream_id, 0, 0) + self._compressed(headers)
        )

    def reply_frame(self, stream_id: int) -> bytes:
        """Return the frame that accepts a stream of the peer."""
        if (stream := self._streams.get(stream_id)) is None or stream.is_replied:
            return b""
        stream.is_replied = True
        return self._control(SYN_REPLY, 0, WORD.pack(stream_id) + self._compressed({}))

    def data_frame(self, stream_id: int, data: bytes, *, is_last: bool = False) -> bytes:
        """Return a frame with data; raise BrokenPipeError if the stream is closed in this direction."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_ended:
            raise BrokenPipeError(f"stream {stream_id} is closed")
        if is_last:
            stream.is_ended = True
            self._forget_closed(stream_id, stream)
        return FRAME.pack(stream_id, (FLAG_FIN << 24 if is_last else 0) | len(data)) + data

    def reset_frame(self, stream_id: int, status: int = CANCEL) -> bytes:
        """Return the frame that closes a stream in both directions; nothing if it is closed."""
        if self._streams.pop(stream_id, None) is None:
            return b""
        return self._control(RST_STREAM, 0, TWO_WORDS.pack(stream_id, status))

    def refuse(self, stream_id: int) -> None:
        """Reset a stream of the peer with the next `data_to_send`."""
        self._output.append(self.reset_frame(stream_id, REFUSED_STREAM))

    def ping_frame(self) -> bytes:
        ping_id, self._next_ping = self._next_ping, (self._next_ping + 2) & MAX_STREAM_ID or 2
        return self._control(PING, 0, WORD.pack(ping_id))

    def goaway_frame(self, status: int = GOAWAY_OK) -> bytes:
        return self._control(GOAWAY, 0, TWO_WORDS.pack(self._last_peer_id, status))

    def _control(self, kind: int, flags: int, payload: bytes) -> bytes:
        return FRAME.pack(1 << 31 | VERSION << 16 | kind, flags << 24 | len(payload)) + payload

    def _compressed(self, headers: Mapping[str, str]) -> bytes:
        words = [WORD.pack(len(headers))]
        for pair in headers.items():
            for text in pair:
                encoded = text.encode()
                words += WORD.pack(len(encoded)), encoded
        return self._compressor.compress(b"".join(words)) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    # -- receiving

    def receive_data(self, data: bytes) -> list[Event]:
        """Return what the received bytes mean. After a SpdyError, send `data_to_send` and close the connection."""
        try:
            return self._parse(data)
        except SpdyError:
            self._output.append(self.goaway_frame(GOAWAY_PROTOCOL_ERROR))
            raise

    def _parse(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        data = self._unparsed + data if self._unparsed else data
        position, end = 0, len(data)
        while True:
            if self._data_frame is not None:
                chunk = data[position : position + self._data_left]
                position += len(chunk)
                self._data_left -= len(chunk)
                self._on_data(*self._data_frame, chunk, events)
                if self._data_left:
                    break
                self._data_frame = None
            if end - position < FRAME.size:
                break
            first, second = FRAME.unpack_from(data, position)
            flags, length = second >> 24, second & 0xFFFFFF
            if first >> 31 == 0:
                if first not in self._streams:
                    self._check_known(first)
                self._data_frame, self._data_left = (first, flags), length
                position += FRAME.size
                continue
            if first >> 16 & 0x7FFF != VERSION:
                raise SpdyError(f"SPDY version {first >> 16 & 0x7FFF} is not supported")
            if length > MAX_CONTROL_BYTES:
                raise SpdyError(f"a control frame of {length} bytes is over the limit of {MAX_CONTROL_BYTES}")
            if end - position < FRAME.size + length:
                break
            start = position + FRAME.size
            position = start + length
            handler = self._handlers.get(first & 0xFFFF)
            if handler is None:
                raise SpdyError(f"control frames of type {first & 0xFFFF} are not supported")
            try:
                handler(flags, data[start:position], events)
            except struct.error as error:
                raise SpdyError("a control frame is too short") from error
        self._unparsed = data[position:]
        return events

    def _on_data(self, stream_id: int, flags: int, data: bytes, events: list[Event]) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return  # the stream was reset, and the peer did not know yet
        if stream.is_ended_by_peer:
            self._output.append(self.reset_frame(stream_id, STREAM_ALREADY_CLOSED))
            events.append(StreamReset(stream_id))
            return
        if data:
            events.append(DataReceived(stream_id, data))
        if flags & FLAG_FIN and not self._data_left:
            self._end_by_peer(stream_id, stream, events)

    def _on_syn_stream(self, flags: int, payload: bytes, events: list[Event]) -> None:
        stream_id, _, _ = SYN_STREAM_FIELDS.unpack_from(payload)
        if stream_id % 2 == self._parity or not self._last_peer_id < stream_id <= MAX_STREAM_ID:
            raise SpdyError(f"stream ID {stream_id} is not valid after {self._last_peer_id}")
        headers = self._headers(payload[SYN_STREAM_FIELDS.size :])
        self._last_peer_id = stream_id
        stream = self._streams[stream_id] = StreamState(is_replied=False)
        if flags & FLAG_UNIDIRECTIONAL or len(self._streams) > MAX_STREAMS:
            self.refuse(stream_id)
            return
        events.append(StreamOpened(stream_id, headers))
        if flags & FLAG_FIN:
            self._end_by_peer(stream_id, stream, events)

    def _on_syn_reply(self, flags: int, payload: bytes, events: list[Event]) -> None:
        (stream_id,) = WORD.unpack_from(payload)
        self._headers(payload[WORD.size :])
        self._check_known(stream_id)
        stream = self._streams.get(stream_id)
        if stream_id % 2 != self._parity or (stream is not None and stream.is_replied):
            raise SpdyError(f"a second reply, or one to a stream of the peer: {stream_id}")
        if stream is not None:
            stream.is_replied = True
            events.append(StreamReplied(stream_id))
            if flags & FLAG_FIN:
                self._end_by_peer(stream_id, stream, events)

    def _on_rst_stream(self, _: int, payload: bytes, events: list[Event]) -> None:
        stream_id, _ = TWO_WORDS.unpack(payload)
        self._check_known(stream_id)
        if self._streams.pop(stream_id, None) is not None:
            events.append(StreamReset(stream_id))

    def _on_ping(self, _: int, payload: bytes, __: list[Event]) -> None:
        (ping_id,) = WORD.unpack(payload)
        if ping_id % 2 != self._parity:
            self._output.append(self._control(PING, 0, payload))

    def _on_goaway(self, _: int, payload: bytes, events: list[Event]) -> None:
        TWO_WORDS.unpack(payload)
        events.append(GoneAway())

    def _on_headers(self, flags: int, payload: bytes, events: list[Event]) -> None:
        (stream_id,) = WORD.unpack_from(payload)
        self._headers(payload[WORD.size :])  # also changes the state of the decompressor
        self._check_known(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None and flags & FLAG_FIN:
            self._end_by_peer(stream_id, stream, events)

    def _on_ignored(self, _: int, payload: bytes, __: list[Event]) -> None:
        WORD.unpack_from(payload)

    def _check_known(self, stream_id: int) -> None:
        """Raise SpdyError for a stream that was never open."""
        is_own = stream_id % 2 == self._parity
        if not 0 < stream_id <= MAX_STREAM_ID or stream_id > (self._next_id - 2 if is_own else self._last_peer_id):
            raise SpdyError(f"stream {stream_id} was never opened")

    def _end_by_peer(self, stream_id: int, stream: StreamState, events: list[Event]) -> None:
        if not stream.is_ended_by_peer:
            stream.is_ended_by_peer = True
            events.append(StreamEnded(stream_id))
            self._forget_closed(stream_id, stream)

    def _forget_closed(self, stream_id: int, stream: StreamState) -> None:
        if stream.is_ended and stream.is_ended_by_peer:
            del self._streams[stream_id]

    def _headers(self, block: bytes) -> Mapping[str, str]:
        try:
            data = self._decompressor.decompress(block, MAX_HEADER_BYTES + 1)
        except zlib.error as error:
            raise SpdyError("the headers are not compressed as SPDY/3 requires") from error
        if len(data) > MAX_HEADER_BYTES or self._decompressor.unconsumed_tail:
            raise SpdyError(f"the headers of a stream are over the limit of {MAX_HEADER_BYTES} bytes")
        return parse_headers(data)


def parse_headers(data: bytes) -> Mapping[str, str]:
    """Return decompressed headers; several values of one header are separated by NUL characters."""
    position = WORD.size
    texts: list[str] = []
    try:
        for _ in range(2 * WORD.unpack_from(data)[0]):
            (length,) = WORD.unpack_from(data, position)
            position += WORD.size + length
            if position > len(data):
                break
            texts.append(data[position - length : position].decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise SpdyError("the headers of a stream are not valid") from error
    if position != len(data):
        raise SpdyError("the headers of a stream have another length")
    names = [each.lower() for each in texts[::2]]
    if len(set(names)) < len(names):
        raise SpdyError("a header of a stream occurs twice")
    return dict(zip(names, texts[1::2], strict=True))

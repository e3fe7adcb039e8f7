"""The SPDY protocol without I/O: what both sides understand, and hostile input."""

import itertools
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.streams import spdy
from tapestry.streams.spdy import (
    DataReceived,
    Event,
    GoneAway,
    SpdyError,
    SpdyProtocol,
    StreamEnded,
    StreamOpened,
    StreamReplied,
    StreamReset,
)
from tapestry.streams.spdy_dictionary import HEADER_DICTIONARY

HEADERS = {"streamtype": "stdin", "port": "80"}


def control(kind: int, payload: bytes = b"", flags: int = 0, version: int = 3) -> bytes:
    return struct.pack("!HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack("!II", stream_id, flags << 24 | len(payload)) + payload


def words(*values: int) -> bytes:
    return struct.pack(f"!{len(values)}I", *values)


def compressed(block: bytes) -> bytes:
    compressor = zlib.compressobj(zdict=HEADER_DICTIONARY)
    return compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)


def syn(stream_id: int, block: bytes = words(0), flags: int = 0) -> bytes:
    """Return the first SYN_STREAM of a connection."""
    return control(spdy.SYN_STREAM, words(stream_id, 0) + bytes(2) + compressed(block), flags)


def server_with_stream() -> tuple[SpdyProtocol, SpdyProtocol]:
    """Return a client and a server with an accepted stream 1."""
    client, server = SpdyProtocol(is_server=False), SpdyProtocol(is_server=True)
    server.receive_data(client.open_stream(HEADERS)[1])
    client.receive_data(server.reply_frame(1))
    return client, server


def test_dictionary_is_that_of_spdy_3() -> None:
    assert zlib.adler32(HEADER_DICTIONARY) == 0xE3C6A7C2  # the identifier in all SPDY/3 headers


def test_streams_transfer_headers_data_and_ends() -> None:
    client, server = SpdyProtocol(is_server=False), SpdyProtocol(is_server=True)
    stream_id, frame = client.open_stream(HEADERS)
    assert server.receive_data(frame) == [StreamOpened(1, HEADERS)]
    assert client.receive_data(server.reply_frame(stream_id)) == [StreamReplied(1)]
    assert server.receive_data(client.data_frame(1, b"abc")) == [DataReceived(1, b"abc")]
    assert server.receive_data(client.data_frame(1, b"d", is_last=True)) == [DataReceived(1, b"d"), StreamEnded(1)]
    assert client.receive_data(server.data_frame(1, b"", is_last=True)) == [StreamEnded(1)]
    for each in (client, server):
        with pytest.raises(BrokenPipeError):
            each.data_frame(1, b"x")
    assert server.receive_data(client.open_stream({})[1]) == [StreamOpened(3, {})]
    assert server.receive_data(client.reset_frame(3)) == [StreamReset(3)]
    assert client.receive_data(server.goaway_frame()) == [GoneAway()]


def test_only_pings_of_the_peer_are_answered() -> None:
    client, server = SpdyProtocol(is_server=False), SpdyProtocol(is_server=True)
    ping = client.ping_frame()
    assert server.receive_data(ping) == []
    answer = server.data_to_send()
    assert answer == ping
    assert client.receive_data(answer) == []
    assert client.data_to_send() == b""


def test_window_updates_and_settings_are_ignored() -> None:
    _, server = server_with_stream()
    assert server.receive_data(control(spdy.WINDOW_UPDATE, words(1, 10))) == []
    assert server.receive_data(control(spdy.SETTINGS, words(1, 7, 65536))) == []
    assert server.data_to_send() == b""


def test_data_is_passed_on_before_its_frame_is_complete() -> None:
    _, server = server_with_stream()
    head = struct.pack("!II", 1, spdy.FLAG_FIN << 24 | 0xFFFFFF)  # 16 MiB, of which little arrives
    assert server.receive_data(head + b"ab") == [DataReceived(1, b"ab")]
    assert server.receive_data(b"c") == [DataReceived(1, b"c")]
    rest = server.receive_data(bytes(0xFFFFFF - 3))
    assert rest == [DataReceived(1, bytes(0xFFFFFF - 3)), StreamEnded(1)]


def test_data_after_the_end_resets_the_stream() -> None:
    client, server = server_with_stream()
    server.receive_data(client.data_frame(1, b"", is_last=True))
    assert server.receive_data(data(1, b"late")) == [StreamReset(1)]
    assert server.data_to_send() == control(spdy.RST_STREAM, words(1, spdy.STREAM_ALREADY_CLOSED))
    assert server.receive_data(data(1, b"later")) == []
    assert server.data_to_send() == b""


def test_data_of_a_reset_stream_is_dropped() -> None:
    client, server = server_with_stream()
    late = client.data_frame(1, b"late")
    assert server.reset_frame(1)
    assert server.reset_frame(1) == b""
    assert server.receive_data(late) == []


def test_too_many_streams_and_unidirectional_ones_are_refused() -> None:
    client, server = SpdyProtocol(is_server=False), SpdyProtocol(is_server=True)
    for _ in range(spdy.MAX_STREAMS):
        assert len(server.receive_data(client.open_stream(HEADERS)[1])) == 1
    stream_id, frame = client.open_stream(HEADERS)
    assert server.receive_data(frame) == []
    assert server.data_to_send() == control(spdy.RST_STREAM, words(stream_id, spdy.REFUSED_STREAM))
    other = SpdyProtocol(is_server=True)
    assert other.receive_data(syn(1, flags=spdy.FLAG_UNIDIRECTIONAL)) == []
    assert other.data_to_send() == control(spdy.RST_STREAM, words(1, spdy.REFUSED_STREAM))


BOMB = words(1, 1) + b"a" + words(1 << 20) + bytes(1 << 20)


@pytest.mark.parametrize(
    "frames",
    [
        syn(2),  # an ID of the server
        syn(0),
        syn(3) + control(spdy.SYN_STREAM, words(1, 0) + bytes(2)),  # a smaller ID
        syn(1) + control(spdy.SYN_STREAM, words(1, 0) + bytes(2)),  # used again
        data(1, b"x"),  # before SYN_STREAM
        data(0, b"x"),
        control(spdy.SYN_REPLY, words(1) + compressed(words(0))),
        control(spdy.RST_STREAM, words(1, 5)),
        control(spdy.RST_STREAM, words(1)),
        control(spdy.HEADERS, words(1) + compressed(words(0))),
        control(spdy.PING, b"abc"),
        control(spdy.GOAWAY),
        control(spdy.SYN_STREAM, b"abc"),
        control(5),  # unknown types
        control(12),
        control(spdy.PING, words(1), version=2),
        struct.pack("!HHI", 0x8003, spdy.SYN_STREAM, spdy.MAX_CONTROL_BYTES + 1),
        control(spdy.SYN_STREAM, words(1, 0) + bytes(2) + b"not zlib"),
        syn(1, b""),
        syn(1, words(0xFFFFFFFF)),
        syn(1, words(1, 5) + b"ab"),
        syn(1, words(1, 0xFFFFFFFF) + b"ab"),
        syn(1, words(1, 1) + b"\xff" + words(0)),
        syn(1, words(2, 1) + b"a" + words(0, 1) + b"A" + words(0)),  # twice
        syn(1, words(0) + b"more"),
        syn(1, BOMB),
    ],
)
def test_invalid_frame_ends_the_connection(frames: bytes) -> None:
    server = SpdyProtocol(is_server=True)
    with pytest.raises(SpdyError):
        server.receive_data(frames)
    assert server.data_to_send().endswith(words(spdy.GOAWAY_PROTOCOL_ERROR))


def test_second_reply_ends_the_connection() -> None:
    client, server = SpdyProtocol(is_server=False), SpdyProtocol(is_server=True)
    server.receive_data(client.open_stream(HEADERS)[1])
    reply = server.reply_frame(1)
    assert server.reply_frame(1) == b""
    client.receive_data(reply)
    with pytest.raises(SpdyError):
        client.receive_data(control(spdy.SYN_REPLY, reply[8:]))


def merged(events: list[Event]) -> list[Event]:
    """Return events with adjacent data joined."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, DataReceived) and isinstance(last, DataReceived) and last.stream_id == event.stream_id:
            result[-1] = DataReceived(event.stream_id, last.data + event.data)
        else:
            result.append(event)
    return result


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 4000), max_size=30))
@settings(max_examples=60, deadline=None)
def test_frames_mean_the_same_however_they_are_split(chunks: list[bytes], cuts: list[int]) -> None:
    client, whole, split = (SpdyProtocol(is_server=each) for each in (False, True, True))
    frames = b"".join(client.open_stream({**HEADERS, "requestid": str(each)})[1] for each in range(3))
    frames += b"".join(client.data_frame(1 + 2 * (number % 3), each) for number, each in enumerate(chunks))
    frames += client.ping_frame() + client.data_frame(3, b"", is_last=True) + client.goaway_frame()
    edges = sorted({min(each, len(frames)) for each in cuts} | {0, len(frames)})
    events = [event for start, end in itertools.pairwise(edges) for event in split.receive_data(frames[start:end])]
    assert merged(events) == merged(whole.receive_data(frames))
    assert split.data_to_send() == whole.data_to_send()


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=64),
            st.builds(control, st.integers(0, 12), st.binary(max_size=40), st.integers(0, 3)),
            st.builds(data, st.integers(0, 8), st.binary(max_size=40), st.integers(0, 3)),
            st.builds(syn, st.integers(0, 8), st.binary(max_size=40), st.integers(0, 3)),
        ),
        max_size=12,
    ),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_arbitrary_input_is_understood_or_rejected(frames: list[bytes], is_server: bool) -> None:
    protocol = SpdyProtocol(is_server=is_server)
    protocol.open_stream(HEADERS)
    try:
        for frame in frames:
            protocol.receive_data(frame)
    except SpdyError:
        assert protocol.data_to_send()

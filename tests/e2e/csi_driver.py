"""A CSI driver for the kubelet of a real node. Its volumes are folders of this machine, which several nodes can share.

The driver runs in this process. The kubelet connects to its sockets in the folders of the node. Messages of gRPC are
encoded by hand, because only a few fields of them are used.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from .nodes import RealNode

DRIVER = "disk.example"
KUBELET = Path("/var/lib/kubelet")
Method = Callable[[bytes], bytes]


def field(number: int, value: str) -> bytes:
    """Return a string field of a message."""
    content = value.encode()
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def strings(message: bytes) -> dict[int, str]:
    """Return the fields of a message with a length: strings, and messages in it, by number."""
    found, position = {}, 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(message):
        key = varint()
        size = varint()  # of a field with a length, or the value of a number
        if key & 7 == 2:
            found[key >> 3] = message[position : position + size].decode(errors="replace")
            position += size
    return found


def methods(node: RealNode, volumes: Path) -> Mapping[str, Method]:
    """Return the methods of the services that a kubelet calls. Volumes are mounted in the namespace of the node."""

    def publish(request: bytes) -> bytes:
        handle, target = (strings(request)[number] for number in (1, 4))
        (volumes / handle).mkdir(exist_ok=True)
        node.run("mkdir", "-p", target)
        node.run("mount", "--bind", volumes / handle, target)
        return b""

    def unpublish(request: bytes) -> bytes:
        target = strings(request)[2]
        if target in node.run("cat", "/proc/self/mounts"):
            node.run("umount", target)
        node.run("rm", "-rf", target)
        return b""

    info = field(1, "CSIPlugin") + field(2, DRIVER) + field(3, str(KUBELET / "plugins" / DRIVER)) + field(4, "1.0.0")
    return {
        "pluginregistration.Registration/GetInfo": lambda _: info,
        "pluginregistration.Registration/NotifyRegistrationStatus": lambda _: b"",
        "csi.v1.Identity/GetPluginInfo": lambda _: field(1, DRIVER) + field(2, "1"),
        "csi.v1.Identity/GetPluginCapabilities": lambda _: b"",
        "csi.v1.Identity/Probe": lambda _: b"",
        "csi.v1.Node/NodeGetInfo": lambda _: field(1, node.name),
        "csi.v1.Node/NodeGetCapabilities": lambda _: b"",
        "csi.v1.Node/NodePublishVolume": publish,
        "csi.v1.Node/NodeUnpublishVolume": unpublish,
    }


class Services(grpc.GenericRpcHandler):
    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._methods.get(details.method.removeprefix("/"))
        return None if method is None else grpc.unary_unary_rpc_method_handler(lambda request, _: method(request))


@contextmanager
def running_csi_driver(node: RealNode, volumes: Path) -> Iterator[None]:
    """Serve the driver to the kubelet of a node until the context exits."""
    sockets = [KUBELET / "plugins" / DRIVER, KUBELET / "plugins_registry" / "disk.sock"]
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Services(methods(node, volumes))])
    for path in sockets:
        own = node.folder / path.relative_to("/")
        own.parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{own}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()

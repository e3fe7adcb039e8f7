"""Generate the Python stubs of the lifecycle API, and reject changes that break its clients.

    python tools/contract.py            writes src/tapestry/vclusters/api, and adds new parts to proto/baseline.txt
    python tools/contract.py --check    fails if one of these files would change

`proto/baseline.txt` has one line for each field, enum value and RPC that was ever released. A line that the contract no
longer has is a breaking change: the field was removed, or has another name, number or type.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

ROOT = Path(__file__).parent.parent
PROTO = ROOT / "proto"
CONTRACT = Path("vcluster/api/v1/vcluster_api.proto")
BASELINE = PROTO / "baseline.txt"
STUBS = ROOT / "src" / "tapestry" / "vclusters" / "api"
STUB_NAMES = ("vcluster_api_pb2.py", "vcluster_api_pb2.pyi")
"""The listeners and clients find the RPCs in the descriptors, so they need no generated classes of services."""
ADVICE = "run `python tools/contract.py` and commit the files"


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the stubs of the lifecycle API.")
    parser.add_argument("--check", action="store_true", help="only report what would change")
    is_check = parser.parse_args().check
    stubs, descriptor = generate()
    found = set(contract_lines(descriptor))
    released = set(BASELINE.read_text().splitlines()) if BASELINE.exists() else set()
    if missing := breaking_changes(released, found):
        sys.exit("\n".join([f"{CONTRACT} breaks clients. These parts were released:", *missing]))
    files = {STUBS / name: text for name, text in stubs.items()}
    files[BASELINE] = "\n".join(sorted(found | released)) + "\n"
    outdated = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if is_check and outdated:
        sys.exit("\n".join([*(f"{path.relative_to(ROOT)} is outdated" for path in outdated), ADVICE]))
    for path in outdated:
        path.write_text(files[path])


def generate() -> tuple[dict[str, str], FileDescriptorProto]:
    """Return the stubs by file name, and the descriptor of the contract."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        options = [f"--python_out={out}", f"--pyi_out={out}"]
        descriptors = out / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *options]
        subprocess.run([*command, f"--descriptor_set_out={descriptors}", str(CONTRACT)], check=True)
        stubs = {name: (out / CONTRACT.parent / name).read_text() for name in STUB_NAMES}
        descriptor = FileDescriptorSet.FromString(descriptors.read_bytes()).file[0]
    package = ".".join(CONTRACT.parent.parts)
    return {
        name: text.replace(f"from {package} import", "from tapestry.vclusters.api import")
        for name, text in stubs.items()
    }, descriptor


def breaking_changes(released: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return the released parts that are missing."""
    return sorted({*released}.difference(found))


def contract_lines(contract: FileDescriptorProto) -> Iterator[str]:
    """Yield a line for each field, enum value and RPC."""
    for message in contract.message_type:
        for field in message.field:
            yield f"message {message.name} {field.name} = {field.number} {field_type(message, field)}"
    for enum in contract.enum_type:
        for value in enum.value:
            yield f"enum {enum.name} {value.name} = {value.number}"
    for service in contract.service:
        for method in service.method:
            yield f"rpc {service.name}.{method.name} {rpc_type(method)}"


def field_type(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    name = short_name(field.type_name) or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    for nested in message.nested_type:
        if nested.name == name and nested.options.map_entry:
            key, value = nested.field
            return f"map<{field_type(nested, key)}, {field_type(nested, value)}>"
    return f"repeated {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def rpc_type(method: MethodDescriptorProto) -> str:
    stream = ("stream " if method.client_streaming else "", "stream " if method.server_streaming else "")
    return f"{stream[0]}{short_name(method.input_type)} -> {stream[1]}{short_name(method.output_type)}"


def short_name(type_name: str) -> str:
    return type_name.rpartition(".")[2]


if __name__ == "__main__":
    main()

"""The etcd protobuf messages and fields that the client uses.

Names and numbers are from the published protocol: `rpc.proto` and `kv.proto` of go.etcd.io/etcd/api v3.6.8
(Apache-2.0). Fields that are not listed are skipped when a message is decoded.
"""

from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

PACKAGE = "etcdserverpb"
FIELD_TYPES = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "enum": FieldDescriptorProto.TYPE_INT32,  # same encoding as int32
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
}
MESSAGE_FIELDS = {
    "ResponseHeader": "int64 revision 3",
    "KeyValue": "bytes key 1, int64 mod_revision 3, int64 version 4, bytes value 5, int64 lease 6",
    "Event": "enum type 1, KeyValue kv 2",
    "RangeRequest": "bytes key 1, bytes range_end 2, int64 limit 3, int64 revision 4, bool keys_only 8,"
    " bool count_only 9",
    "RangeResponse": "ResponseHeader header 1, repeated KeyValue kvs 2, bool more 3",
    "PutRequest": "bytes key 1, bytes value 2, int64 lease 3",
    "DeleteRangeRequest": "bytes key 1, bytes range_end 2",
    "RequestOp": "RangeRequest request_range 1, PutRequest request_put 2, DeleteRangeRequest request_delete_range 3",
    "ResponseOp": "RangeResponse response_range 1",
    "Compare": "enum result 1, enum target 2, bytes key 3, int64 version 4, int64 mod_revision 6, bytes value 7,"
    " bytes range_end 64",
    "TxnRequest": "repeated Compare compare 1, repeated RequestOp success 2, repeated RequestOp failure 3",
    "TxnResponse": "ResponseHeader header 1, bool succeeded 2, repeated ResponseOp responses 3",
    "CompactionRequest": "int64 revision 1",
    "CompactionResponse": "ResponseHeader header 1",
    "WatchCreateRequest": "bytes key 1, bytes range_end 2, int64 start_revision 3, bool progress_notify 4",
    "WatchProgressRequest": "",
    "WatchRequest": "WatchCreateRequest create_request 1, WatchProgressRequest progress_request 3",
    "WatchResponse": "ResponseHeader header 1, bool created 3, bool canceled 4, int64 compact_revision 5,"
    " string cancel_reason 6, repeated Event events 11",
    "LeaseGrantRequest": "int64 TTL 1",
    "LeaseGrantResponse": "ResponseHeader header 1, int64 ID 2",
}
COMPARE_VERSION, COMPARE_MOD_REVISION, COMPARE_VALUE = 0, 2, 3
"""Targets of a Compare. Its default result, 0, means "equal"."""
COMPARE_LESS = 2
"""Result of a Compare that means "less"."""
DELETE_EVENT = 1
"""Type of a delete Event; 0 is a put."""


def message_classes() -> dict[str, Any]:
    """Create a class for each message, in a separate pool to avoid conflicts with other etcd messages."""
    file = FileDescriptorProto(name="etcd.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGE_FIELDS.items():
        message = file.message_type.add(name=name)
        for field in filter(None, fields.split(",")):
            *repeated, kind, field_name, number = field.split()
            descriptor = message.field.add(name=field_name, number=int(number))
            descriptor.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in FIELD_TYPES:
                descriptor.type = FIELD_TYPES[kind]
            else:
                descriptor.type, descriptor.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGE_FIELDS
    }


rpc: Any = SimpleNamespace(**message_classes())
"""The message classes by name. They are created on import, so type checkers do not know their fields."""
Message = Any
"""An instance of one of these classes."""

"""The messages of etcd that are used here, and of each the fields that are.

Names and numbers are facts of the published protocol: `rpc.proto` and `kv.proto` of go.etcd.io/etcd/api v3.6.8
(Apache-2.0).  Fields that are not listed are skipped when a message is read.
"""

from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

PACKAGE = "etcdserverpb"
FIELD_TYPES = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "enum": FieldDescriptorProto.TYPE_INT32,  # the same on the wire
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
}
MESSAGE_FIELDS = {
    "ResponseHeader": "int64 revision 3",
    "KeyValue": "bytes key 1, int64 mod_revision 3, int64 version 4, bytes value 5, int64 lease 6",
    "Event": "enum type 1, KeyValue kv 2",
    "RangeRequest": "bytes key 1, bytes range_end 2, int64 limit 3, int64 revision 4, bool count_only 9",
    "RangeResponse": "ResponseHeader header 1, repeated KeyValue kvs 2, bool more 3",
    "PutRequest": "bytes key 1, bytes value 2, int64 lease 3",
    "DeleteRangeRequest": "bytes key 1",
    "RequestOp": "RangeRequest request_range 1, PutRequest request_put 2, DeleteRangeRequest request_delete_range 3",
    "ResponseOp": "RangeResponse response_range 1",
    "Compare": "enum result 1, enum target 2, bytes key 3, int64 version 4, int64 mod_revision 6, bytes range_end 64",
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
COMPARE_VERSION, COMPARE_MOD_REVISION = 0, 2
"""What a Compare is about; its result 0 is "equal"."""
COMPARE_LESS = 2
"""Another one."""
DELETE_EVENT = 1
"""The type of an Event; 0 is a put."""


def message_classes() -> dict[str, Any]:
    """A class for each message, in a pool of their own: other programs' etcd messages do not meet ours."""
    file = FileDescriptorProto(name="etcd.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGE_FIELDS.items():
        message = file.message_type.add(name=name)
        for field in filter(None, fields.split(",")):
            *repeated, kind, field_name, number = field.split()
            added = message.field.add(name=field_name, number=int(number))
            added.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in FIELD_TYPES:
                added.type = FIELD_TYPES[kind]
            else:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGE_FIELDS
    }


rpc: Any = SimpleNamespace(**message_classes())
"""The classes by their names; they are made when this is imported, so no type checker knows their fields."""
Message = Any
"""An instance of one of them."""

"""All methods of the contract, for the gateway."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.protobuf.message import Message

from tapestry.vclusters.access.roles import PROXY_METHOD
from tapestry.vclusters.administration import Administration
from tapestry.vclusters.gateway import AdmittedCall, Respond
from tapestry.vclusters.operation_service import OperationService
from tapestry.vclusters.service import VClusterService
from tapestry.vclusters.snapshot_service import SnapshotService
from tapestry.vclusters.vcluster_reads import VClusterReads


class Part(Protocol):
    """Some methods of the contract."""

    def methods(self) -> Mapping[str, Respond]: ...

    def project_of(self, method: str, request: Any) -> str | None: ...


@dataclass(frozen=True)
class Contract:
    """The service behind the gateway, which calls each method for callers that may call it."""

    vclusters: VClusterService
    reads: VClusterReads
    snapshots: SnapshotService
    operations: OperationService
    administration: Administration
    _methods: dict[str, Respond] = field(default_factory=dict, init=False)
    _parts: dict[str, Part] = field(default_factory=dict, init=False)
    """Part that has a method."""

    def __post_init__(self) -> None:
        parts: tuple[Part, ...] = (self.vclusters, self.reads, self.snapshots, self.operations, self.administration)
        for part in parts:
            self._methods.update(part.methods())
            self._parts.update(dict.fromkeys(part.methods(), part))
        streams: Mapping[str, Part] = {
            "WatchVCluster": self.reads,
            PROXY_METHOD: self.reads,
            "ExportAuditRecords": self.administration,
        }
        self._parts.update(streams)

    def project_of(self, method: str, request: Message) -> str | None:
        return self._parts[method].project_of(method, request)

    async def call(self, call: AdmittedCall) -> Message:
        return await self._methods[call.method](call)

    def stream(self, call: AdmittedCall) -> AsyncGenerator[Message, None]:
        return self.reads.watch(call) if call.method == "WatchVCluster" else self.administration.export(call)

"""All methods of the contract, for the gateway."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import Message

from tapestry.vclusters.administration import Administration
from tapestry.vclusters.gateway import AdmittedCall
from tapestry.vclusters.service import Respond, VClusterService


@dataclass(frozen=True)
class Contract:
    """The service behind the gateway, which calls each method for callers that may call it."""

    vclusters: VClusterService
    administration: Administration
    _methods: Mapping[str, Respond] = field(init=False)
    _administrative: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        administrative = self.administration.methods()
        object.__setattr__(self, "_methods", {**self.vclusters.methods(), **administrative})
        object.__setattr__(self, "_administrative", frozenset(administrative) | {"ExportAuditRecords"})

    def project_of(self, method: str, request: Message) -> str | None:
        is_administrative = method in self._administrative
        part = self.administration if is_administrative else self.vclusters
        return part.project_of(method, request)

    async def call(self, call: AdmittedCall) -> Message:
        response: Message = await self._methods[call.method](call)
        return response

    def stream(self, call: AdmittedCall) -> AsyncGenerator[Message, None]:
        return self.vclusters.watch(call) if call.method == "WatchVCluster" else self.administration.export(call)

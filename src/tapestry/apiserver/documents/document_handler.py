"""Handlers of discovery, OpenAPI and version documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from gzip import decompress

from msgspec.structs import replace

from tapestry.apiserver.aggregation.aggregator import Aggregator
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.codec import JSON, accepted_types, negotiated_form
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.responses import ApiResponse, PathHandler, json_response
from tapestry.apiserver.core.workers import run_if_large
from tapestry.apiserver.documents import discovery
from tapestry.apiserver.documents.document_cache import Document, DocumentCache
from tapestry.apiserver.documents.openapi_v2_protobuf import CONTENT_TYPE, MEDIA_TYPES
from tapestry.kube.objects import Object


@dataclass(frozen=True)
class DocumentHandler:
    registry: ResourceRegistry
    documents: DocumentCache
    version: Object
    aggregator: Aggregator

    def path_handlers(self) -> Mapping[str, PathHandler]:
        return {"openapi": self.openapi, "version": self.server_version}

    async def server_version(self, call: Call) -> ApiResponse:
        if call.path.strip("/") != "version":
            raise api_errors.path_not_found()
        return json_response(200, self.version)

    async def openapi(self, call: Call) -> ApiResponse:
        accept, remotes = call.headers.get("accept", ""), self.aggregator.documents.openapi
        try:
            match call.path.strip("/").split("/")[1:]:
                case ["v2"] if any(each.type in MEDIA_TYPES for each in accepted_types(accept)):
                    return await openapi_response(
                        call, await self.documents.openapi_v2_protobuf(await remotes()), CONTENT_TYPE
                    )
                case ["v2"]:
                    negotiated_form(accept, frozenset())
                    return await openapi_response(call, await self.documents.openapi_v2(await remotes()))
                case ["v3"]:
                    return await openapi_response(call, await self.documents.openapi_v3_index(await remotes()))
                case ["v3", "apis", _, _] if (
                    remote := self.aggregator.services.for_path(call.path.removeprefix("/openapi/v3"))
                ) is not None:
                    return await self.aggregator.proxy.forward(call, remote)
                case ["v3", *path]:
                    return await openapi_response(call, await self.documents.openapi_v3("/".join(path)))
        except KeyError:
            pass  # the group or version is not served
        raise api_errors.path_not_found()

    async def discovery(self, call: Call) -> ApiResponse | None:
        """Return a discovery document, or None if the path may name a resource."""
        match call.path.strip("/").split("/"):
            case ["api" | "apis" as root]:
                return await self.root_discovery(call, legacy=root == "api")
            case ["api", version]:
                return self.group_discovery("", version)
            case ["apis", group, *rest] if len(rest) < 2:
                return self.group_discovery(group, *rest)
        return None

    async def root_discovery(self, call: Call, *, legacy: bool) -> ApiResponse:
        for each in accepted_types(call.headers.get("accept", "")):
            if each.form == discovery.AGGREGATED and each.parameters.get("v") == "v2":
                content_type = f"{JSON};g=apidiscovery.k8s.io;v=v2;as={discovery.AGGREGATED}"
                remotes = () if legacy else await self.aggregator.documents.discovery()
                document = await self.documents.aggregated_discovery(remotes, legacy=legacy)
                return await uncompressed_response(call, document, content_type)
            if not each.form:
                break
        if legacy:
            return json_response(200, discovery.api_versions())
        return json_response(200, discovery.api_groups(self.registry, self.aggregator.documents.group_versions()))

    def group_discovery(self, group: str, version: str = "") -> ApiResponse | None:
        """Return the unaggregated discovery document of a group or a version, or None if it is not served."""
        versions = self.registry.groups().get(group, {})
        if version:
            if version not in versions:
                return None
            return json_response(200, discovery.api_resources(group, version, versions[version]))
        remotes = [each for name, each in self.aggregator.documents.group_versions() if name == group]
        if not versions and not remotes:
            return None
        return json_response(200, discovery.api_group(group, [*versions, *remotes]))


async def openapi_response(call: Call, document: Document, content_type: str = JSON) -> ApiResponse:
    """Return a document, compressed if the client accepts it."""
    response = etag_response(call, document, content_type)
    if response.status == 200 and accepts_gzip(call.headers.get("accept-encoding", "")):
        return replace(response, headers={**response.headers, "Content-Encoding": "gzip"})
    return await uncompressed_response(call, document, content_type)


async def uncompressed_response(call: Call, document: Document, content_type: str) -> ApiResponse:
    response = etag_response(call, document, content_type)
    if response.status != 200:
        return response
    return replace(response, body=await run_if_large(len(document.body), decompress, document.body))


def etag_response(call: Call, document: Document, content_type: str = JSON) -> ApiResponse:
    """Return a document, or 304 if the client has it. A document requested by its hash is cacheable forever."""
    headers = {"ETag": f'"{document.etag}"', "Vary": "Accept, Accept-Encoding"}
    if call.query.get("hash") == document.etag:
        headers["Cache-Control"] = "public, immutable, max-age=31536000"
    if document.etag in call.headers.get("if-none-match", ""):
        return ApiResponse(304, b"", content_type, headers)
    return ApiResponse(200, document.body, content_type, headers)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the header names gzip with a weight other than 0."""
    for each in accept_encoding.lower().split(","):
        coding, _, weight = each.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight == "" or weight.strip("0.") != ""
    return False

"""Assembly of the in-process API server for tests from parts of the real one.

Included: paths, verbs, decoding by type, defaults, validation, server-side apply, CustomResourceDefinitions, evictions,
bindings, scales, and addresses of Services.  Omitted: authorization, admission (namespaces need not exist), connections
to kubelets, and all work of controllers, for example garbage collection.  The test supplies the status of reviews.
Tokens are not signed.
"""

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from random import Random
from zlib import crc32

from tapestry.apiserver.access.reviews import created_response, review_body
from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.access.token_keys import TokenKeys
from tapestry.apiserver.admission.matching import AdmissionAttributes
from tapestry.apiserver.admission.syncer_restriction import SyncerRestriction
from tapestry.apiserver.aggregation.aggregator import build_aggregator
from tapestry.apiserver.aggregation.proxy import AggregationProxy
from tapestry.apiserver.core.egress import EgressPolicy
from tapestry.apiserver.core.host_access import HostAccess
from tapestry.apiserver.core.requests import Call, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import PublishedApi, ResourceRegistry, published_api
from tapestry.apiserver.core.responses import ApiResponse, ResourceHandler
from tapestry.apiserver.core.session_limiter import SessionLimiter
from tapestry.apiserver.core.spec_cache import SpecCache
from tapestry.apiserver.core.storage_codec import StorageCodec
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.core.type_decoders import TypeDecoders
from tapestry.apiserver.customresources.definitions import Definitions, DefinitionStrategy
from tapestry.apiserver.defaults import kinds as defaults
from tapestry.apiserver.defaults import server_fields
from tapestry.apiserver.documents.document_cache import DocumentCache
from tapestry.apiserver.documents.document_handler import DocumentHandler
from tapestry.apiserver.fieldmanager.apply import FieldManager
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchemas
from tapestry.apiserver.handlers.pipeline import (
    BuiltInDecoder,
    Pipeline,
    ResourceStep,
    is_built_in,
    is_custom,
    is_one_of,
)
from tapestry.apiserver.handlers.reader import Reader
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.handlers.verbs import Verbs
from tapestry.apiserver.service_allocator import ServiceAllocator
from tapestry.apiserver.subresources.evictions import EvictionHandler
from tapestry.apiserver.subresources.scales import ScaleHandler
from tapestry.apiserver.subresources.tokens_and_bindings import TokensAndBindings
from tapestry.apiserver.validation import strategies as validation
from tapestry.controller.testing.storage import InstantStore
from tapestry.kube.objects import Object, uid_from_bits, with_value
from tapestry.kube.resources import (
    CRDS,
    DISRUPTION_BUDGETS,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)

REVIEWS = (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_ACCESS_REVIEWS)
SERVICE_RANGE = ipaddress.ip_network("10.0.0.0/8")
ANY_SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True)
class SharedParts:
    """Parts that are built once per process, because building them takes longer than most tests."""

    table: PublishedApi
    registry: ResourceRegistry
    """All resources, including those that a test's server does not serve."""
    types: TypeDecoders
    shapes: MergeSchemas


@cache
def shared_parts() -> SharedParts:
    table = published_api()
    return SharedParts(
        table, ResourceRegistry(table.resources), TypeDecoders(table.schemas), MergeSchemas(table.schemas)
    )


def new_server(
    resources: Iterable[Resource],
    store: InstantStore,
    now: Callable[[], datetime],
    review: Callable[[Object], Object],
    random: Random,
    is_plane: bool = False,
) -> Server:
    """Return a server of these resources.  Resources that Kubernetes does not have become custom resources."""
    shared, served = shared_parts(), {*resources, *REVIEWS}
    types, registry = shared.types, ResourceRegistry(info for info in shared.table.resources if info.resource in served)
    definitions, rules = Definitions(store, registry, types), DefinitionStrategy(registry, now)
    for resource in sorted(served - {info.resource for info in registry}, key=lambda each: each.name):
        definitions.serve(definition_of(resource))
    restriction = SyncerRestriction()
    if is_plane:
        restriction.enable(())
    addresses = ServiceAllocator(store, SERVICE_RANGE, random, restriction)
    ownership = FieldManager(shared.shapes, now, tracks_from_creation=False)
    crds, values = is_one_of(CRDS.name), DeterministicValues(store, random.getrandbits(64))
    admit = Pipeline(
        [
            *(
                ResourceStep(is_built_in, BuiltInDecoder(types, SpecCache())),
                ResourceStep(is_custom, definitions.prune_and_default),
            ),
            *(ResourceStep(is_one_of(SECRETS.name), server_fields.merge_string_data), defaults.apply_defaults),
            *(ResourceStep(crds, rules.default), ownership.track_update),
        ]
    )
    validate = Pipeline(
        [
            *(
                values.uid,
                *(() if is_plane else (ResourceStep(is_one_of(SERVICES.name), values.address),)),
                server_fields.prepare_for_write,
            ),
            *(ResourceStep(is_one_of(SERVICES.name), addresses), validation.validation_step),
            ResourceStep(is_one_of(SERVICES.name), restriction.check_fields),
            *(
                ResourceStep(is_custom, definitions.validate),
                ResourceStep(crds, rules.validate),
                ownership.ignore_timestamp_changes,
            ),
        ]
    )
    codec = StorageCodec()
    reader, verbs = Reader(store, codec, random), Verbs(store, codec, now, admit, validate, (), ownership.apply, random)
    special: dict[tuple[str, str], ResourceHandler] = {
        **{(each.name, ""): review_handler(review) for each in REVIEWS},
        **TokensAndBindings(
            reader, verbs, shared.registry, ServiceAccountTokens(store, partial(UnsignedKeys, random), "", now)
        ).handlers(),
        ("*", "scale"): ScaleHandler(reader, verbs, admit_unchanged).handle,
        ("pods", "eviction"): EvictionHandler(reader, verbs, shared.registry.info_for(DISRUPTION_BUDGETS)).evict,
    }
    host = HostAccess()
    proxy = AggregationProxy(store, random, no_front_proxy_certificate, 30.0, EgressPolicy().check_api_server, host)
    aggregator = build_aggregator(store, registry, proxy, SessionLimiter(1, 1), host)
    documents = DocumentHandler(registry, DocumentCache(registry, {}), server_version(shared.table), aggregator)
    return Server(
        *(registry, reader, verbs, documents, aggregator),
        special_handlers=special,
        path_handlers=documents.path_handlers(),
    )


def no_front_proxy_certificate() -> tuple[Path, Path]:
    raise ValueError("this API forwards no requests")


def server_version(table: PublishedApi) -> Object:
    major, minor, _ = table.version.removeprefix("v").split(".", 2)
    return {"major": major, "minor": minor, "gitVersion": f"{table.version}+tapestry"}


def definition_of(resource: Resource) -> Object:
    """Return a CustomResourceDefinition that accepts any field, with a status."""
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": ANY_SCHEMA},
        "subresources": {"status": {}},
    }
    names = {"kind": resource.kind, "plural": resource.plural, "listKind": f"{resource.kind}List"}
    scope = "Namespaced" if resource.namespaced else "Cluster"
    spec = {"group": resource.group, "scope": scope, "names": names, "versions": [version]}
    return {"metadata": {"name": resource.name}, "spec": spec}


async def admit_unchanged(_: WriteRequest, attributes: AdmissionAttributes) -> Object | None:
    return attributes.new


def review_handler(review: Callable[[Object], Object]) -> ResourceHandler:
    async def handle(call: Call, target: Target) -> ApiResponse:
        body = review_body(call, target)
        return created_response({**body, "status": review(body)})

    return handle


@dataclass(frozen=True)
class DeterministicValues:
    """Pipeline steps that derive a server's random values from the object's name.

    Names of twins contain UIDs.  A replay that creates one object more must still produce the same names.
    """

    store: InstantStore
    salt: int
    """Make the UIDs of this server differ from those of others."""

    async def uid(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if old is not None:
            return new
        key = request_key(request)
        return with_value(
            new, ("metadata", "uid"), random_uid(Random(f"{self.salt}/{key}/{self.store.create_counts[key]}"))
        )

    async def address(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        key = request_key(request)
        if old is not None or key in self.store.latest:  # an existing name is rejected later
            return new
        spec = new.get("spec") or {}
        if spec.get("clusterIP") or spec.get("type") == "ExternalName":
            return new
        offset = crc32(f"{key}".encode()) % (SERVICE_RANGE.num_addresses - 2)
        return with_value(new, ("spec", "clusterIP"), str(SERVICE_RANGE[1 + offset]))


def request_key(request: WriteRequest) -> Key:
    return Key(request.target.info.storage, request.target.namespace, request.name)


class UnsignedKeys(TokenKeys):
    """Tokens that no server accepts and that are the same on every run."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def drop_retired(self, now: datetime) -> None:
        """Do nothing: there are no keys."""

    def sign(self, claims: Object) -> str:
        return f"{claims['kubernetes.io']['serviceaccount']['uid']}.{random_uid(self._random)}"


def random_uid(random: Random) -> str:
    return uid_from_bits(random.getrandbits(128))

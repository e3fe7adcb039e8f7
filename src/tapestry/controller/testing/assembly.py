"""The API server of this project as tests have it: its own parts, put together without those that need a world around.

What is the same: paths, verbs, reading by type, defaults, validation, server-side apply, CustomResourceDefinitions,
evictions, bindings, and addresses of Services.  What is left out: rights, admission (namespaces need not be there),
scales, connections to kubelets, and whatever is done by controllers, such as collecting garbage.  Reviews are answered
by the test, and tokens are signed by nobody.
"""

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from random import Random
from zlib import crc32

from tapestry.apiserver.access.reviews import created, posted
from tapestry.apiserver.access.service_accounts import Accounts
from tapestry.apiserver.access.signing import Keys
from tapestry.apiserver.admission import plain as admission
from tapestry.apiserver.customs.definitions import DefinitionRules, Definitions
from tapestry.apiserver.defaults import kinds as defaults
from tapestry.apiserver.documents.documents import Documents
from tapestry.apiserver.ownership.apply import Ownership
from tapestry.apiserver.ownership.shapes import Shapes
from tapestry.apiserver.pipeline import Only, Pipeline, TypedReading, is_built_in, is_custom, stored
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.rows import Rows, Table, built_in
from tapestry.apiserver.server import Answer, Handler, Server
from tapestry.apiserver.service_addresses import Addresses
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.subresources.evictions import Evictions
from tapestry.apiserver.subresources.plain import Subresources
from tapestry.apiserver.types import Types
from tapestry.apiserver.validation import kinds as validation
from tapestry.apiserver.verbs import Request, Verbs
from tapestry.controller.testing.storage import InstantStore
from tapestry.kube.objects import Object, uid_from, with_value
from tapestry.kube.resources import (
    ACCESS_REVIEWS,
    CRDS,
    DISRUPTION_BUDGETS,
    SECRETS,
    SELF_ACCESS_REVIEWS,
    SERVICES,
    TOKEN_REVIEWS,
    Resource,
)

REVIEWS = (TOKEN_REVIEWS, ACCESS_REVIEWS, SELF_ACCESS_REVIEWS)
SERVICE_RANGE = ipaddress.ip_network("10.0.0.0/8")
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True)
class Parts:
    """What is made once in a process: it takes longer than most tests."""

    table: Table
    rows: Rows
    """All of them, whatever a server of a test has."""
    types: Types
    shapes: Shapes


@cache
def parts() -> Parts:
    table = built_in()
    return Parts(table, Rows(table.rows), Types(table.types), Shapes(table.types))


def assembled(
    resources: Iterable[Resource],
    store: InstantStore,
    now: Callable[[], datetime],
    review: Callable[[Object], Object],
    random: Random,
) -> Server:
    """A server of these resources, those that Kubernetes does not have being custom ones."""
    shared, served = parts(), {*resources, *REVIEWS}
    types, rows = shared.types, Rows(row for row in shared.table.rows if row.resource in served)
    definitions, rules = Definitions(store, rows, types), DefinitionRules(rows, now)
    for resource in sorted(served - {row.resource for row in rows}, key=lambda each: each.name):
        definitions.serve(definition_of(resource))
    definitions.load()
    addresses = Addresses(store, SERVICE_RANGE, random)
    addresses.load()
    ownership = Ownership(shared.shapes, now, from_the_start=False)
    crds, given = stored(CRDS.name), Given(store, random.getrandbits(64))
    prepare = Pipeline(
        [
            *(Only(is_built_in, TypedReading(types)), Only(is_custom, definitions.read)),
            *(Only(stored(SECRETS.name), admission.plain_secrets), defaults.step),
            *(Only(crds, rules.default), ownership.track),
        ]
    )
    settle = Pipeline(
        [
            *(given.uid, Only(stored(SERVICES.name), given.address), admission.kinds),
            *(Only(stored(SERVICES.name), addresses), validation.step),
            *(Only(is_custom, definitions.check), Only(crds, rules.settle), ownership.steady),
        ]
    )
    verbs = Verbs(store, now, prepare, settle, ownership.apply, random)
    special: dict[tuple[str, str], Handler] = {
        **{(each.name, ""): reviewed(review) for each in REVIEWS},
        **Subresources(verbs, shared.rows, Accounts(store, Unsigned(random), "", now)).handlers(),
        ("pods", "eviction"): Evictions(verbs, shared.rows.of(DISRUPTION_BUDGETS)).evict,
    }
    return Server(rows, verbs, Documents(rows, shared.table.types), version_of(shared.table), special=special)


def version_of(table: Table) -> Object:
    major, minor, _ = table.version.removeprefix("v").split(".", 2)
    return {"major": major, "minor": minor, "gitVersion": f"{table.version}+tapestry"}


def definition_of(resource: Resource) -> Object:
    """A definition of a kind that may look like anything, with a status."""
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": ANYTHING},
        "subresources": {"status": {}},
    }
    names = {"kind": resource.kind, "plural": resource.plural, "listKind": f"{resource.kind}List"}
    scope = "Namespaced" if resource.namespaced else "Cluster"
    spec = {"group": resource.group, "scope": scope, "names": names, "versions": [version]}
    return {"metadata": {"name": resource.name}, "spec": spec}


def reviewed(review: Callable[[Object], Object]) -> Handler:
    async def answer(call: Call, target: Target) -> Answer:
        body = posted(call, target)
        return created({**body, "status": review(body)})

    return answer


@dataclass(frozen=True)
class Given:
    """Steps: what a server chooses at random for an object follows from its name, not from what was made before.

    Names of ours are made of UIDs, and a replay that makes one thing more must come to the same ones.
    """

    store: InstantStore
    salt: int
    """Makes this server's UIDs unlike those of others."""

    async def uid(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None or old is not None:
            return new or old or {}
        key = key_of(request)
        return with_value(new, ("metadata", "uid"), uid(Random(f"{self.salt}/{key}/{self.store.births[key]}")))

    async def address(self, request: Request, old: Object | None, new: Object | None) -> Object:
        key = key_of(request)
        if new is None or old is not None or key in self.store.truth:  # the last is going to be refused
            return new or old or {}
        spec = new.get("spec") or {}
        if spec.get("clusterIP") or spec.get("type") == "ExternalName":
            return new
        chosen = crc32(f"{key}".encode()) % (SERVICE_RANGE.num_addresses - 2)
        return with_value(new, ("spec", "clusterIP"), str(SERVICE_RANGE[1 + chosen]))


def key_of(request: Request) -> Key:
    """Which object is made."""
    return Key(request.target.row.storage, request.target.namespace, request.name)


class Unsigned(Keys):
    """Tokens that nothing accepts, and that are the same on every run."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def signed(self, claims: Object) -> str:
        return f"{claims['kubernetes.io']['serviceaccount']['uid']}.{uid(self._random)}"


def uid(random: Random) -> str:
    return uid_from(random.getrandbits(128))

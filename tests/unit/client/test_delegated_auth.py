"""Reviews of callers by the API server, and their reuse."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from tapestry.client.client import Client
from tapestry.client.delegated_auth import (
    ACCEPTED_SECONDS,
    DENIED_SECONDS,
    MAX_CACHED_REVIEWS,
    CachedAuth,
    Caller,
    certificate_user,
)
from tapestry.controller.testing import InProcessApi
from tapestry.kube.errors import Forbidden, Unauthorized
from tapestry.kube.objects import Object
from tapestry.kube.resources import TOKEN_REVIEWS


@dataclass
class Reviews:
    """An API server that authenticates tokens other than `bad`, and authorizes the user `operator`."""

    kinds: list[str] = field(default_factory=list)
    """Kinds of the reviews that it received."""
    now: float = 0.0

    def __post_init__(self) -> None:
        api = InProcessApi([], now=lambda: datetime.now(UTC), review=self.review)
        self.auth = CachedAuth(Client(api), lambda: self.now)

    def review(self, review: Object) -> Object:
        self.kinds.append(review["kind"][:5])
        spec = review["spec"]
        if review["kind"] == TOKEN_REVIEWS.kind:
            return {"authenticated": spec["token"] != "bad", "user": {"username": spec["token"]}}
        return {"allowed": spec["user"] == "operator"}

    async def authorize(self, token: str, node: str = "n1", verb: str = "create") -> Object:
        return await self.auth.authorize(Caller({}, token), verb, "proxy", node)


async def test_accepted_review_is_reused_for_a_while() -> None:
    reviews = Reviews()
    for _ in range(3):
        assert (await reviews.authorize("operator"))["username"] == "operator"
    assert reviews.kinds == ["Token", "Subje"]
    reviews.now = ACCEPTED_SECONDS
    await reviews.authorize("operator")
    assert reviews.kinds == ["Token", "Subje"] * 2


async def test_decision_is_for_one_verb_and_node() -> None:
    reviews = Reviews()
    for node, verb in (("n1", "create"), ("n1", "get"), ("n2", "get")):
        await reviews.authorize("operator", node, verb)
    assert reviews.kinds == ["Token", "Subje", "Subje", "Subje"]


async def test_denial_is_reused_for_a_shorter_time() -> None:
    reviews = Reviews()
    for now, count in ((0.0, 1), (DENIED_SECONDS - 1, 1), (DENIED_SECONDS, 2)):
        reviews.now = now
        with pytest.raises(Forbidden, match="user=guest, verb=create, resource=nodes, subresource=proxy"):
            await reviews.authorize("guest")
        assert reviews.kinds.count("Subje") == count


async def test_rejected_token_is_reviewed_every_time() -> None:
    reviews = Reviews()
    for _ in range(2):
        with pytest.raises(Unauthorized):
            await reviews.authorize("bad")
    with pytest.raises(Unauthorized):
        await reviews.authorize("")
    assert reviews.kinds == ["Token", "Token"]


async def test_number_of_cached_reviews_is_limited() -> None:
    reviews = Reviews()
    await reviews.authorize("operator")
    for number in range(MAX_CACHED_REVIEWS):
        with pytest.raises(Forbidden):
            await reviews.authorize(f"guest-{number}")
    reviews.kinds.clear()
    await reviews.authorize("operator")
    assert reviews.kinds == ["Token", "Subje"]


def test_certificate_without_a_name_has_no_user() -> None:
    assert certificate_user({"organizationName": ["system:masters"]}) is None
    assert certificate_user({"commonName": ["a"], "organizationName": ["g"]}) == {"username": "a", "groups": ["g"]}

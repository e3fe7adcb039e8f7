"""Pages of lists at one revision, in an order, and what is in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tapestry.apiserver.core.store import Compacted
from tapestry.kube.objects import Object, name_of, namespace_of
from tapestry.kube.selectors import LabelSelector, SelectorError, parse_label_selector
from tapestry.vclusters.access.roles import Caller, Role
from tapestry.vclusters.errors import Violation, field_invalid, resource_version_expired
from tapestry.vclusters.page_tokens import PageTokens, page_size
from tapestry.vclusters.stored_objects import project_in

T = TypeVar("T")
Sort = Callable[[Object], str]
ORDERS: Mapping[str, tuple[Sort, bool]] = {
    "": (lambda _: "", False),
    "name": (name_of, False),
    "-name": (name_of, True),
    "create_time": (lambda each: str(each["metadata"]["creationTimestamp"]), False),
    "-create_time": (lambda each: str(each["metadata"]["creationTimestamp"]), True),
}
"""Sort key by `order_by`, and whether the order is descending. Objects with the same key are in the order of ids."""


@dataclass(frozen=True)
class Page(Generic[T]):
    items: Sequence[T]
    next_token: str
    total: int


@dataclass(frozen=True)
class Pager:
    """Pages of lists at the revision of their first page."""

    tokens: PageTokens

    def page(
        self,
        request: Any,
        revision: int,
        list_at: Callable[[int], Sequence[Object]],
        filters: Mapping[str, Any],
        order_by: str = "",
    ) -> Page[Object]:
        """Return one page of what `list_at` returns for a revision. Raises ServiceError."""
        key, is_descending = order_of(order_by)
        size = page_size(request.page_size)
        filters = {**filters, "orderBy": order_by}
        position = self.tokens.position(request.page_token, filters)
        if position is not None:
            revision = position.revision
        try:
            found = list_at(revision)
        except Compacted as error:
            raise resource_version_expired(error.oldest) from error
        by_id = {id_of(each): each for each in found}
        pairs = sorted(((key(each), id) for id, each in by_id.items()), reverse=is_descending)
        start = 0 if position is None else next_index(pairs, position.last)
        chosen = pairs[start : start + size]
        token = self.tokens.token(revision, chosen[-1], filters) if start + size < len(pairs) else ""
        return Page([by_id[id] for _, id in chosen], token, len(pairs))


def is_visible(caller: Caller, obj: Object) -> bool:
    """Return whether an object is in the lists of a caller."""
    return caller.role_in(project_in(obj) or "") >= Role.VIEWER


def selector_of(text: str) -> LabelSelector:
    """Return the label selector of a list or a watch. Raises ServiceError."""
    try:
        return parse_label_selector(text)
    except SelectorError as error:
        raise field_invalid(Violation("labelSelector", str(error))) from error


def order_of(order_by: str) -> tuple[Sort, bool]:
    name, _, direction = order_by.strip().partition(" ")
    known = ORDERS.get(f"-{name}" if direction.strip() == "desc" else name)
    if known is None or direction.strip() not in ("", "asc", "desc"):
        raise field_invalid(Violation("orderBy", "must be name or create_time, with - before it or desc after it"))
    return known


def id_of(obj: Object) -> str:
    return f"{namespace_of(obj) or ''}/{name_of(obj)}"


def next_index(pairs: Sequence[tuple[str, str]], last: tuple[str, str]) -> int:
    """Return the place after a pair. It is missing if the caller may not see it any more."""
    for number, pair in enumerate(pairs):
        if pair == last:
            return number + 1
    raise field_invalid(Violation("pageToken", "the list has changed; begin with the first page"))

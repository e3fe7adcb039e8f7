"""Questions: which objects of a kind are wanted, in which order, and how many at a time.

    ?namespace=default&filter=phase=Running,name~web&sort=-created,name&limit=20&page=2

Fields are those of flat objects (`phase`, `labels.app`, `conditions.Ready.status`, `spec.replicas`); one that begins
with a dot is looked up in the object itself (`.metadata.generation`, `.reason`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.apiext.errors import bad_request
from tapestry.kube.objects import Object

FIELDS = (
    *("kind", "name", "namespace", "uid", "created", "deleting", "labels", "annotations", "phase", "conditions"),
    *("spec", "status"),
)
PARAMETERS = ("namespace", "filter", "sort", "limit", "page", "cursor")
DEFAULT_LIMIT, MAX_LIMIT = 100, 500
"""Objects at a time: unless told, and at most."""
COMMA_PATTERN = re.compile(r"(?<!\\),")
TERM_PATTERN = re.compile(r"(?P<field>[^=!~]+)(?P<operator>==?|!=|!~|~)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object, and how it looks flat."""

    obj: Object
    flat: Object

    def value(self, field: str) -> Any:
        return value_at_path(self.obj, field[1:]) if field.startswith(".") else value_at_path(self.flat, field)


@dataclass(frozen=True, slots=True)
class FilterTerm:
    """What must be so of an object: a field equals or, with `~`, contains a text, or does not."""

    field: str
    value: str
    contains: bool
    negated: bool

    def matches(self, candidate: Candidate) -> bool:
        found = candidate.value(self.field)
        texts = [value_text(each) for each in found] if isinstance(found, list) else [value_text(found)]
        if self.contains:
            holds = any(self.value.casefold() in each.casefold() for each in texts)
        else:
            holds = self.value in texts
        return holds is not self.negated


@dataclass(frozen=True, slots=True)
class SortKey:
    """What to sort by."""

    field: str
    descending: bool


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Without terms, keys and page the server's own pages will do, and `cursor` says which; else all must be read."""

    namespace: str | None = None
    terms: tuple[FilterTerm, ...] = ()
    keys: tuple[SortKey, ...] = ()
    limit: int = DEFAULT_LIMIT
    page: int | None = None
    cursor: str = ""

    @property
    def needs_full_list(self) -> bool:
        return bool(self.terms or self.keys or self.page is not None)

    def matches(self, candidate: Candidate) -> bool:
        return all(term.matches(candidate) for term in self.terms)

    def page_of(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The page that is asked for, of all that match."""
        begin = ((self.page or 1) - 1) * self.limit
        return sorted_candidates(candidates, self.keys)[begin : begin + self.limit]

    def page_count(self, total: int) -> int:
        return math.ceil(total / self.limit)


def parse_list_query(query: Mapping[str, str]) -> ListQuery:
    """What a query asks for; raises BadRequest with what to write instead."""
    for name in query:
        if name not in PARAMETERS:
            raise bad_request(f"{name}: there is no such parameter; there are {', '.join(PARAMETERS)}")
    found = ListQuery(
        query.get("namespace") or None,
        tuple(parse_filter_term(each) for each in comma_separated(query.get("filter", ""))),
        tuple(parse_sort_key(each) for each in comma_separated(query.get("sort", ""))),
        parse_number(query["limit"], "limit", MAX_LIMIT) if "limit" in query else DEFAULT_LIMIT,
        parse_number(query["page"], "page", None) if "page" in query else None,
        query.get("cursor", ""),
    )
    if found.cursor and found.needs_full_list:
        raise bad_request("cursor: it goes on with a list that has no filter, sort or page; with these, ask for a page")
    return found


def comma_separated(value: str) -> list[str]:
    """What commas divide; `\\,` is a comma that does not."""
    return [each.replace("\\,", ",").strip() for each in COMMA_PATTERN.split(value) if each.strip()]


def parse_filter_term(part: str) -> FilterTerm:
    found = TERM_PATTERN.fullmatch(part)
    if found is None:
        raise bad_request(f"filter: {part!r} is none; write field=text, field!=text, field~part or field!~part")
    operator = found["operator"]
    return FilterTerm(
        check_field(found["field"].strip(), "filter"), found["value"].strip(), "~" in operator, "!" in operator
    )


def parse_sort_key(part: str) -> SortKey:
    return SortKey(check_field(part.removeprefix("-").strip(), "sort"), part.startswith("-"))


def check_field(field: str, parameter: str) -> str:
    if field.partition(".")[0] in FIELDS or (field.startswith(".") and len(field) > 1):
        return field
    told = f"there are {', '.join(FIELDS)}, and what is below them; `.reason` is a field of the object itself"
    raise bad_request(f"{parameter}: there is no field {field!r}; {told}")


def parse_number(value: str, parameter: str, maximum: int | None) -> int:
    if value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= (maximum or int(value)):
        return int(value)
    raise bad_request(f"{parameter}: {value!r} is not a number from 1 {f'to {maximum}' if maximum else 'on'}")


def value_at_path(value: Any, path: str) -> Any:
    """What is below `value` at a dotted path; a key may have dots of its own, as those of labels do."""
    while isinstance(value, dict):
        if path in value:
            return value[path]
        head, dot, path = path.partition(".")
        if not dot:
            return None
        value = value.get(head)
    return None


def value_text(value: Any) -> str:
    """A value as people write it in a query."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def sorted_candidates(candidates: Sequence[Candidate], keys: Sequence[SortKey]) -> list[Candidate]:
    """In the order of the keys, the first one first; what lacks a field comes last, whichever way it is sorted."""
    found = list(candidates)
    for each in reversed(keys):
        having = [one for one in found if one.value(each.field) is not None]
        lacking = [one for one in found if one.value(each.field) is None]
        found = sorted(having, key=lambda one: sort_rank(one.value(each.field)), reverse=each.descending) + lacking
    return found


def sort_rank(value: Any) -> tuple[int, float, str]:
    """Numbers among themselves, then everything else by its text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value, ""
    return 1, 0, value_text(value)

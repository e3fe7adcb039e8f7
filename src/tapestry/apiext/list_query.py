"""Query parameters of lists: filter, sort order and page.

  ?namespace=default&filter=phase=Running,name~web&sort=-created,name&limit=20&page=2

Fields are those of flat objects (`phase`, `labels.app`, `conditions.Ready.status`, `spec.replicas`).  A field that
begins with a dot is looked up in the object itself (`.metadata.generation`, `.reason`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.apiext.errors import bad_request
from tapestry.kube.objects import Object

FIELDS = (
    *("kind", "name", "namespace", "uid", "version", "created", "deleting", "labels", "annotations", "phase"),
    *("conditions", "spec", "status"),
)
PARAMETERS = ("namespace", "filter", "sort", "limit", "page", "cursor")
DEFAULT_LIMIT, MAX_LIMIT = 100, 500
"""Objects per page: the default and the maximum."""
COMMA_PATTERN = re.compile(r"(?<!\\),")
TERM_PATTERN = re.compile(r"(?P<field>[^=!~]+)(?P<operator>==?|!=|!~|~)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object and its flat form."""

    obj: Object
    flat: Object

    def value(self, field: str) -> Any:
        return value_at_path(self.obj, field[1:]) if field.startswith(".") else value_at_path(self.flat, field)


@dataclass(frozen=True, slots=True)
class FilterTerm:
    """Condition on a field: equal to a text or, with `~`, containing it; optionally negated."""

    field: str
    value: str
    contains: bool
    negated: bool

    def matches(self, candidate: Candidate) -> bool:
        found = candidate.value(self.field)
        texts = [value_text(each) for each in found] if isinstance(found, list) else [value_text(found)]
        if self.contains:
            is_match = any(self.value.casefold() in each.casefold() for each in texts)
        else:
            is_match = self.value in texts
        return is_match is not self.negated


@dataclass(frozen=True, slots=True)
class SortKey:
    field: str
    descending: bool


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Parsed parameters; without terms, keys and page, the server's own pages and `cursor` are used."""

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
        begin = ((self.page or 1) - 1) * self.limit
        return sorted_candidates(candidates, self.keys)[begin : begin + self.limit]

    def page_count(self, total: int) -> int:
        return math.ceil(total / self.limit)


def parse_list_query(query: Mapping[str, str]) -> ListQuery:
    """Parse query parameters; raise BadRequest with advice if one is invalid."""
    for name in query:
        if name not in PARAMETERS:
            raise bad_request(f"{name}: no such parameter; valid are {', '.join(PARAMETERS)}")
    found = ListQuery(
        query.get("namespace") or None,
        tuple(parse_filter_term(each) for each in comma_separated(query.get("filter", ""))),
        tuple(parse_sort_key(each) for each in comma_separated(query.get("sort", ""))),
        parse_number(query["limit"], "limit", MAX_LIMIT) if "limit" in query else DEFAULT_LIMIT,
        parse_number(query["page"], "page", None) if "page" in query else None,
        query.get("cursor", ""),
    )
    if found.cursor and found.needs_full_list:
        raise bad_request("cursor: not allowed with filter, sort or page; use page instead")
    return found


def comma_separated(value: str) -> list[str]:
    r"""Split at commas; `\\,` is a literal comma."""
    return [each.replace("\\,", ",").strip() for each in COMMA_PATTERN.split(value) if each.strip()]


def parse_filter_term(part: str) -> FilterTerm:
    found = TERM_PATTERN.fullmatch(part)
    if found is None:
        raise bad_request(f"filter: {part!r} is not a filter; write field=text, field!=text, field~part or field!~part")
    operator = found["operator"]
    return FilterTerm(
        check_field(found["field"].strip(), "filter"), found["value"].strip(), "~" in operator, "!" in operator
    )


def parse_sort_key(part: str) -> SortKey:
    return SortKey(check_field(part.removeprefix("-").strip(), "sort"), part.startswith("-"))


def check_field(field: str, parameter: str) -> str:
    if field.partition(".")[0] in FIELDS or (field.startswith(".") and len(field) > 1):
        return field
    valid = f"use {', '.join(FIELDS)} or a path below; `.reason` is a field of the object itself"
    raise bad_request(f"{parameter}: there is no field {field!r}; {valid}")


def parse_number(value: str, parameter: str, maximum: int | None) -> int:
    if value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= (maximum or int(value)):
        return int(value)
    raise bad_request(f"{parameter}: {value!r} is not a number from 1 {f'to {maximum}' if maximum else 'on'}")


def value_at_path(value: Any, path: str) -> Any:
    """Return the value at a dotted path; keys themselves may contain dots, as those of labels do."""
    while isinstance(value, dict):
        if path in value:
            return value[path]
        head, dot, path = path.partition(".")
        if not dot:
            return None
        value = value.get(head)
    return None


def value_text(value: Any) -> str:
    """Return a value in the form used in queries."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def sorted_candidates(candidates: Sequence[Candidate], keys: Sequence[SortKey]) -> list[Candidate]:
    """Sort by the first key, then by the others; objects without the field are last in both directions."""
    found = list(candidates)
    for each in reversed(keys):
        present = [one for one in found if one.value(each.field) is not None]
        absent = [one for one in found if one.value(each.field) is None]
        found = sorted(present, key=lambda one: sort_rank(one.value(each.field)), reverse=each.descending) + absent
    return found


def sort_rank(value: Any) -> tuple[int, float, str]:
    """Return a sort key: numbers first, then everything else as text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value, ""
    return 1, 0, value_text(value)

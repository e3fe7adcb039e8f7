"""Query parameters of lists: filter, sort order and page.

  ?namespace=default&filter=phase=Running,name~web&sort=-created,name&limit=20&page=2

Fields are those of flat objects (`phase`, `labels.app`, `conditions.Ready.status`, `spec.replicas`).  A field that
begins with a dot is looked up in the object itself (`.metadata.generation`, `.reason`).
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiext.errors import bad_request
from tapestry.kube.budget import charge, checkpoint
from tapestry.kube.objects import Object

FIELDS = (
    *("kind", "name", "namespace", "uid", "version", "created", "deleting", "labels", "annotations", "phase"),
    *("conditions", "spec", "status"),
)
PARAMETERS = ("namespace", "filter", "sort", "limit", "page", "cursor")
DEFAULT_LIMIT, MAX_LIMIT = 100, 500
"""Objects per page: the default and the maximum."""
MAX_FILTER_TERMS, MAX_SORT_KEYS = 32, 8
MAX_FIELD_LENGTH = 512
"""Characters of a field in a filter or a sort key."""
MAX_RANK_LENGTH = 256
"""Characters of a text by which objects are sorted."""
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
    """Condition on a field: equal to a text or, with `~`, containing it; optionally negated.

    A contained text is casefolded.
    """

    field: str
    value: str
    contains: bool
    negated: bool

    def matches(self, candidate: Candidate) -> bool:
        found = candidate.value(self.field)
        texts = (value_text(each) for each in (found if isinstance(found, list) else (found,)))
        is_match = any(self.value in each.casefold() for each in texts) if self.contains else self.value in texts
        return is_match is not self.negated


Rank = tuple[int, float, str]
"""Position of a value in a sorted list: numbers first, then everything else as text."""


@dataclass(frozen=True, slots=True)
class SortKey:
    field: str
    descending: bool


@dataclass(frozen=True, slots=True)
class Match:
    """An encoded object that matches a query, and its rank by each sort key; None if it does not have the field."""

    raw: msgspec.Raw
    ranks: tuple[Rank | None, ...] = ()


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

    def ranks(self, candidate: Candidate) -> tuple[Rank | None, ...]:
        return tuple([rank_of(candidate.value(key.field)) for key in self.keys])

    def page_of(self, matches: Iterable[Match]) -> list[Match]:
        begin = ((self.page or 1) - 1) * self.limit
        return self.sorted(matches)[begin : begin + self.limit]

    def sorted(self, matches: Iterable[Match]) -> list[Match]:
        """Sort by the first key, then by the others; objects without the field are last in both directions."""
        found = list(matches)
        for index in reversed(range(len(self.keys))):
            checkpoint()
            sort_by_key(found, index, self.keys[index].descending)
        return found

    def page_count(self, total: int) -> int:
        return math.ceil(total / self.limit)


def parse_list_query(query: Mapping[str, str]) -> ListQuery:
    """Parse query parameters; raise BadRequest with advice if one is invalid."""
    for name in query:
        if name not in PARAMETERS:
            raise bad_request(f"{name}: no such parameter; valid are {', '.join(PARAMETERS)}")
    found = ListQuery(
        query.get("namespace") or None,
        tuple(parse_filter_term(each) for each in comma_separated(query, "filter", MAX_FILTER_TERMS)),
        tuple(parse_sort_key(each) for each in comma_separated(query, "sort", MAX_SORT_KEYS)),
        parse_number(query["limit"], "limit", MAX_LIMIT) if "limit" in query else DEFAULT_LIMIT,
        parse_number(query["page"], "page", None) if "page" in query else None,
        query.get("cursor", ""),
    )
    if found.cursor and found.needs_full_list:
        raise bad_request("cursor: not allowed with filter, sort or page; use page instead")
    return found


def comma_separated(query: Mapping[str, str], parameter: str, maximum: int) -> list[str]:
    r"""Split a parameter at commas; `\\,` is a literal comma."""
    found = [each.replace("\\,", ",").strip() for each in COMMA_PATTERN.split(query.get(parameter, "")) if each.strip()]
    if len(found) > maximum:
        raise bad_request(f"{parameter}: {len(found)} fields; send at most {maximum}")
    return found


def parse_filter_term(part: str) -> FilterTerm:
    found = TERM_PATTERN.fullmatch(part)
    if found is None:
        advice = "write field=text, field!=text, field~part or field!~part"
        raise bad_request(f"filter: {part[:MAX_FIELD_LENGTH]!r} is not a filter; {advice}")
    field, operator, value = check_field(found["field"].strip(), "filter"), found["operator"], found["value"].strip()
    contains = "~" in operator
    return FilterTerm(field, value.casefold() if contains else value, contains, "!" in operator)


def parse_sort_key(part: str) -> SortKey:
    return SortKey(check_field(part.removeprefix("-").strip(), "sort"), part.startswith("-"))


def check_field(field: str, parameter: str) -> str:
    if len(field) > MAX_FIELD_LENGTH:
        raise bad_request(f"{parameter}: a field of {len(field)} characters; send at most {MAX_FIELD_LENGTH}")
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


def sort_by_key(matches: list[Match], index: int, descending: bool) -> None:
    absent = (-1 if descending else 2, 0, "")
    matches.sort(key=lambda each: each.ranks[index] or absent, reverse=descending)


def value_text(value: Any) -> str:
    """Return a value in the form used in queries."""
    if value is None:
        return ""
    if isinstance(value, str):
        charge(1 + len(value) // 512)
        return value
    text = str(value).lower() if isinstance(value, bool) else str(value)
    charge(1 + len(text) // 64)  # of an object, this is slow
    return text


def rank_of(value: Any) -> Rank | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value, ""
    return 1, 0, value_text(value)[:MAX_RANK_LENGTH]

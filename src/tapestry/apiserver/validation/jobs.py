"""Jobs and cron jobs, with the schedules of the latter."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names, pods
from tapestry.apiserver.validation.faults import (
    invalid,
    needs,
    nonnegative,
    one_of,
    required,
    struct,
    too_long,
    too_many,
    unchanged,
    unsupported,
)
from tapestry.apiserver.validation.metadata import label_selector
from tapestry.apiserver.validation.workloads import mismatched
from tapestry.kube.objects import Object, value_at, without
from tapestry.kube.selectors import SelectorError
from tapestry.kube.selectors import label_selector as selector_of

CRON_NAME_LIMIT = 52
INDEXED_PARALLELISM = 100000
MANAGER_LIMIT = 63
FAILURE_RULES = 20
SCHEDULING = ("nodeSelector", "tolerations", "schedulingGates")
FIXED = ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")
ONLY_INDEXED = "requires indexed completion mode"
ZONE_PART = re.compile(r"[A-Za-z\.\-_0-9+]{1,14}")


def restart_policy(spec: Any, path: str) -> Iterator[Fault]:
    at, policy = f"{path}.template.spec.restartPolicy", value_at(spec, "template", "spec", "restartPolicy", default="")
    if policy in ("", "Always"):
        yield required(at, 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        yield unsupported(at, policy, ("OnFailure", "Never"))
    elif spec.get("podFailurePolicy") is not None and policy != "Never":
        yield invalid(at, policy, 'only "Never" is supported when podFailurePolicy is specified')


def completion(spec: Any, path: str) -> Iterator[Fault]:
    mode, parallelism = spec.get("completionMode", "NonIndexed"), spec.get("parallelism", 0)
    yield from one_of("NonIndexed", "Indexed")(mode, f"{path}.completionMode")
    if mode == "Indexed":
        if spec.get("completions") is None:
            yield required(f"{path}.completions", "when completion mode is Indexed")
        if parallelism > INDEXED_PARALLELISM:
            why = f"must be less than or equal to {INDEXED_PARALLELISM} when completion mode is Indexed"
            yield invalid(f"{path}.parallelism", parallelism, why)
        if (failed := spec.get("maxFailedIndexes", 0)) > spec.get("completions", failed):
            yield invalid(f"{path}.maxFailedIndexes", failed, "must be less than or equal to completions")
    elif mode == "NonIndexed":
        for field in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(field) is not None:
                yield invalid(f"{path}.{field}", spec[field], ONLY_INDEXED)


def failed_indexes(spec: Any, path: str) -> Iterator[Fault]:
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        yield required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified")


def manager(value: Any, path: str) -> Iterator[Fault]:
    host, slash, rest = value.partition("/")
    if not (host and slash and rest):
        yield invalid(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
    else:
        yield from (invalid(path, host, why) for why in names.subdomain(host))
    if len(value) > MANAGER_LIMIT:
        yield too_long(path, MANAGER_LIMIT)


def failure_policy(value: Any, path: str) -> Iterator[Fault]:
    rules = value.get("rules") or []
    if len(rules) > FAILURE_RULES:
        yield too_many(f"{path}.rules", len(rules), FAILURE_RULES)
    for number, each in enumerate(rules):
        yield from one_of("Count", "FailIndex", "FailJob", "Ignore")(
            each.get("action", ""), f"{path}.rules[{number}].action"
        )


def replacement(spec: Any, path: str) -> Iterator[Fault]:
    policy = spec.get("podReplacementPolicy")
    allowed = ("Failed",) if spec.get("podFailurePolicy") is not None else ("Failed", "TerminatingOrFailed")
    if policy is not None and policy not in allowed:
        yield unsupported(f"{path}.podReplacementPolicy", policy, allowed)


def job_template(spec: Any, path: str) -> Iterator[Fault]:
    yield from pods.template(spec.get("template") or {}, f"{path}.template")
    yield from restart_policy(spec, path)


BODY = (
    *(
        (field, nonnegative)
        for field in (
            *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"),
            *("backoffLimitPerIndex", "maxFailedIndexes"),
        )
    ),
    ("", failed_indexes),
    ("managedBy", manager),
    ("", completion),
    ("podFailurePolicy", failure_policy),
    ("", replacement),
    ("", job_template),
)
job_body = struct(*BODY)
job_spec = struct(*BODY, needs("selector"), ("selector", label_selector), ("", mismatched))


def job(obj: Object, _: str = "") -> Iterator[Fault]:
    spec = obj.get("spec") or {}
    yield from foreign_selector(spec)
    yield from job_spec(spec, "spec")
    if spec.get("completionMode") == "Indexed" and spec.get("completions"):
        host = f"{obj['metadata']['name']}-{spec['completions'] - 1}"
        if names.label(host):
            why = f"will not able to create pod with invalid DNS label: {host}"
            yield invalid("metadata.name", obj["metadata"]["name"], why)


def foreign_selector(spec: Object) -> Iterator[Fault]:
    """A fault where a job chooses more than the server made it choose: its own pods."""
    labels, selector = value_at(spec, "template", "metadata", "labels", default={}), spec.get("selector") or {}
    own = {key: value for key, value in labels.items() if key.rpartition("/")[2] in ("controller-uid", "job-name")}
    with suppress(SelectorError):
        if not spec.get("manualSelector") and not selector_of(selector).matches(own):
            yield invalid("spec.selector", selector, "`selector` not auto-generated")


def changed_job(old: Object, new: Object) -> Iterator[Fault]:
    """Faults of a changed job: little of it may be, more as long as it has not started."""
    before, after = old["spec"], new["spec"]
    yield from job_spec(after, "spec")
    if after.get("completionMode") != "Indexed":
        yield from unchanged(before.get("completions"), after.get("completions"), "spec.completions")
    elif before.get("completions") != after.get("completions") != after.get("parallelism"):
        why = "can only be modified in tandem with spec.parallelism"
        yield invalid("spec.completions", after.get("completions"), why)
    yield from unchanged(before.get("selector"), after.get("selector"), "spec.selector")
    waiting = before.get("suspend") and value_at(old, "status", "startTime") is None
    then, now = (scheduled_apart(each["template"]) if waiting else each["template"] for each in (before, after))
    if then != now:
        yield invalid("spec.template", after["template"], "field is immutable")
    for field in FIXED:
        yield from unchanged(before.get(field), after.get(field), f"spec.{field}")


def scheduled_apart(template: Object) -> Object:
    """A template without what says where its pods run."""
    spec = {key: value for key, value in (template.get("spec") or {}).items() if key not in SCHEDULING}
    affinity = without(spec.get("affinity") or {}, "nodeAffinity")
    return {"spec": {**without(spec, "affinity"), **({"affinity": affinity} if affinity else {})}}


# -- cron jobs


def template_of_cron(value: Any, path: str) -> Iterator[Fault]:
    spec = value.get("spec") or {}
    yield from job_body(spec, f"{path}.spec")
    if spec.get("selector") is not None:
        yield invalid(f"{path}.spec.selector", spec["selector"], "`selector` will be auto-generated")
    if spec.get("manualSelector"):
        yield unsupported(f"{path}.spec.manualSelector", True, ("nil", "false"))


def schedule(spec: Any, path: str) -> Iterator[Fault]:
    text, at = spec.get("schedule", ""), f"{path}.schedule"
    if not text:
        yield required(at)
    elif why := schedule_complaint(text):
        yield invalid(at, text, why)
    if "TZ" in text:
        yield invalid(at, text, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")


def zone(value: Any, path: str) -> Iterator[Fault]:
    parts = value.split("/")
    if any(each in (".", "..") or each.startswith("-") or not ZONE_PART.fullmatch(each) for each in parts):
        yield invalid(path, value, f"unknown time zone {value}")
        return
    if value.lower() == "local":
        why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        yield invalid(path, value, why)
        return
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        yield invalid(path, value, f"unknown time zone {value}")


cron_spec = struct(
    ("", schedule),
    ("startingDeadlineSeconds", nonnegative),
    ("timeZone", zone),
    ("concurrencyPolicy", one_of("Allow", "Forbid", "Replace")),
    ("jobTemplate", template_of_cron),
    ("successfulJobsHistoryLimit", nonnegative),
    ("failedJobsHistoryLimit", nonnegative),
)


def cron_job(obj: Object, _: str = "") -> Iterator[Fault]:
    yield from cron_spec(obj.get("spec") or {}, "spec")
    if len(name := obj["metadata"]["name"]) > CRON_NAME_LIMIT:
        yield invalid("metadata.name", name, f"must be no more than {CRON_NAME_LIMIT} characters")


# -- schedules

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
BOUNDS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, MONTHS),
    (0, 6, DAYS),
)
LONGEST_NUMBER = 18
"""Digits of a number in a schedule."""
DESCRIPTORS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
DURATION = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))*")


class BadSchedule(ValueError):
    """A schedule is none; the message is that of the parser that Kubernetes uses."""


def schedule_complaint(text: str) -> str:
    """What keeps a text from being a schedule; empty where nothing does."""
    try:
        check_schedule(text)
    except BadSchedule as error:
        return str(error)
    return ""


def check_schedule(text: str) -> None:
    if text.startswith(("TZ=", "CRON_TZ=")):
        text = text.partition(" ")[2].strip()
    if text.startswith("@every "):
        if not DURATION.fullmatch(text.removeprefix("@every ")):
            given = text.removeprefix("@every ")
            raise BadSchedule(f'failed to parse duration {text}: time: invalid duration "{given}"')
        return
    if text.startswith("@"):
        if text not in DESCRIPTORS:
            raise BadSchedule(f"unrecognized descriptor: {text}")
        return
    fields = text.split()
    if len(fields) != len(BOUNDS):
        raise BadSchedule(f"expected exactly {len(BOUNDS)} fields, found {len(fields)}: [{' '.join(fields)}]")
    for field, bounds in zip(fields, BOUNDS, strict=True):
        for part in filter(None, field.split(",")):
            check_range(part, *bounds)


def check_range(text: str, least: int, most: int, words: tuple[str, ...]) -> None:
    span, *steps = text.split("/")
    low, *highs = span.split("-")
    if low in ("*", "?"):
        start, end = least, most
    else:
        start = ordinal(low, words, least)
        if len(highs) > 1:
            raise BadSchedule(f"too many hyphens: {text}")
        end = ordinal(highs[0], words, least) if highs else start
    if len(steps) > 1:
        raise BadSchedule(f"too many slashes: {text}")
    step = ordinal(steps[0], (), least) if steps else 1
    if steps and not highs:
        end = most
    if start < least:
        raise BadSchedule(f"beginning of range ({start}) below minimum ({least}): {text}")
    if end > most:
        raise BadSchedule(f"end of range ({end}) above maximum ({most}): {text}")
    if start > end:
        raise BadSchedule(f"beginning of range ({start}) beyond end of range ({end}): {text}")
    if step == 0:
        raise BadSchedule(f"step of range should be a positive number: {text}")


def ordinal(text: str, words: tuple[str, ...], least: int) -> int:
    if text.lower() in words:
        return words.index(text.lower()) + least
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise BadSchedule(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    if len(text) > LONGEST_NUMBER:
        raise BadSchedule(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": value out of range')
    if (number := int(text)) < 0:
        raise BadSchedule(f"negative number ({number}) not allowed: {text}")
    return number

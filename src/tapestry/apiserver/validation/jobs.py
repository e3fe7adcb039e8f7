"""Validation of Jobs and CronJobs, including cron schedules."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    invalid_value,
    one_of,
    required_fields,
    required_value,
    struct_validator,
    too_long,
    too_many,
    unsupported_value,
    validate_immutable_field,
    validate_nonnegative,
)
from tapestry.apiserver.core.metadata import validate_label_selector
from tapestry.apiserver.validation import pods
from tapestry.apiserver.validation.workloads import validate_selector_matches_template
from tapestry.kube.objects import Object, value_at, without_field
from tapestry.kube.selectors import SelectorError
from tapestry.kube.selectors import label_selector as selector_of

MAX_CRON_JOB_NAME_LENGTH = 52
MAX_INDEXED_PARALLELISM = 100000
MAX_MANAGED_BY_LENGTH = 63
MAX_FAILURE_RULES = 20
SCHEDULING_FIELDS = ("nodeSelector", "tolerations", "schedulingGates")
IMMUTABLE_FIELDS = ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")
INDEXED_ONLY_MESSAGE = "requires indexed completion mode"
TIME_ZONE_PART = re.compile(r"[A-Za-z\.\-_0-9+]{1,14}")


def validate_job_restart_policy(spec: Any, path: str) -> Iterator[Fault]:
    at, policy = f"{path}.template.spec.restartPolicy", value_at(spec, "template", "spec", "restartPolicy", default="")
    if policy in ("", "Always"):
        yield required_value(at, 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        yield unsupported_value(at, policy, ("OnFailure", "Never"))
    elif spec.get("podFailurePolicy") is not None and policy != "Never":
        yield invalid_value(at, policy, 'only "Never" is supported when podFailurePolicy is specified')


def validate_completion_mode(spec: Any, path: str) -> Iterator[Fault]:
    mode, parallelism = spec.get("completionMode", "NonIndexed"), spec.get("parallelism", 0)
    yield from one_of("NonIndexed", "Indexed")(mode, f"{path}.completionMode")
    if mode == "Indexed":
        if spec.get("completions") is None:
            yield required_value(f"{path}.completions", "when completion mode is Indexed")
        if parallelism > MAX_INDEXED_PARALLELISM:
            msg = f"must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
            yield invalid_value(f"{path}.parallelism", parallelism, msg)
        if (failed := spec.get("maxFailedIndexes", 0)) > spec.get("completions", failed):
            yield invalid_value(f"{path}.maxFailedIndexes", failed, "must be less than or equal to completions")
    elif mode == "NonIndexed":
        for field in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(field) is not None:
                yield invalid_value(f"{path}.{field}", spec[field], INDEXED_ONLY_MESSAGE)


def validate_max_failed_indexes(spec: Any, path: str) -> Iterator[Fault]:
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        yield required_value(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified")


def validate_managed_by(value: Any, path: str) -> Iterator[Fault]:
    host, slash, rest = value.partition("/")
    if not (host and slash and rest):
        yield invalid_value(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
    else:
        yield from (invalid_value(path, host, msg) for msg in names.dns_subdomain_errors(host))
    if len(value) > MAX_MANAGED_BY_LENGTH:
        yield too_long(path, MAX_MANAGED_BY_LENGTH)


def validate_pod_failure_policy(value: Any, path: str) -> Iterator[Fault]:
    rules = value.get("rules") or []
    if len(rules) > MAX_FAILURE_RULES:
        yield too_many(f"{path}.rules", len(rules), MAX_FAILURE_RULES)
    for number, each in enumerate(rules):
        yield from one_of("Count", "FailIndex", "FailJob", "Ignore")(
            each.get("action", ""), f"{path}.rules[{number}].action"
        )


def validate_pod_replacement_policy(spec: Any, path: str) -> Iterator[Fault]:
    policy = spec.get("podReplacementPolicy")
    allowed = ("Failed",) if spec.get("podFailurePolicy") is not None else ("Failed", "TerminatingOrFailed")
    if policy is not None and policy not in allowed:
        yield unsupported_value(f"{path}.podReplacementPolicy", policy, allowed)


def validate_job_pod_template(spec: Any, path: str) -> Iterator[Fault]:
    yield from pods.validate_pod_template(spec.get("template") or {}, f"{path}.template")
    yield from validate_job_restart_policy(spec, path)


JOB_SPEC_VALIDATORS = (
    *(
        (field, validate_nonnegative)
        for field in (
            *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"),
            *("backoffLimitPerIndex", "maxFailedIndexes"),
        )
    ),
    ("", validate_max_failed_indexes),
    ("managedBy", validate_managed_by),
    ("", validate_completion_mode),
    ("podFailurePolicy", validate_pod_failure_policy),
    ("", validate_pod_replacement_policy),
    ("", validate_job_pod_template),
)
validate_job_template_spec = struct_validator(*JOB_SPEC_VALIDATORS)
validate_job_spec = struct_validator(
    *JOB_SPEC_VALIDATORS,
    required_fields("selector"),
    ("selector", validate_label_selector),
    ("", validate_selector_matches_template),
)


def validate_job(obj: Object, _: str = "") -> Iterator[Fault]:
    spec = obj.get("spec") or {}
    yield from validate_generated_selector(spec)
    yield from validate_job_spec(spec, "spec")
    if spec.get("completionMode") == "Indexed" and spec.get("completions"):
        hostname = f"{obj['metadata']['name']}-{spec['completions'] - 1}"
        if names.dns_label_errors(hostname):
            msg = f"will not able to create pod with invalid DNS label: {hostname}"
            yield invalid_value("metadata.name", obj["metadata"]["name"], msg)


def validate_generated_selector(spec: Object) -> Iterator[Fault]:
    """Require a generated selector to match only the job's own pods."""
    labels, selector = value_at(spec, "template", "metadata", "labels", default={}), spec.get("selector") or {}
    owned = {key: value for key, value in labels.items() if key.rpartition("/")[2] in ("controller-uid", "job-name")}
    with suppress(SelectorError):
        if not spec.get("manualSelector") and not selector_of(selector).matches(owned):
            yield invalid_value("spec.selector", selector, "`selector` not auto-generated")


def validate_job_update(old: Object, new: Object) -> Iterator[Fault]:
    """Validate a job update. Few fields are mutable, and some only before the job starts."""
    before, after = old["spec"], new["spec"]
    yield from validate_job_spec(after, "spec")
    if after.get("completionMode") != "Indexed":
        yield from validate_immutable_field(before.get("completions"), after.get("completions"), "spec.completions")
    elif before.get("completions") != after.get("completions") != after.get("parallelism"):
        msg = "can only be modified in tandem with spec.parallelism"
        yield invalid_value("spec.completions", after.get("completions"), msg)
    yield from validate_immutable_field(before.get("selector"), after.get("selector"), "spec.selector")
    is_suspended = before.get("suspend") and value_at(old, "status", "startTime") is None
    old_template, new_template = (
        without_scheduling_fields(each["template"]) if is_suspended else each["template"] for each in (before, after)
    )
    if old_template != new_template:
        yield invalid_value("spec.template", after["template"], "field is immutable")
    for field in IMMUTABLE_FIELDS:
        yield from validate_immutable_field(before.get(field), after.get(field), f"spec.{field}")


def without_scheduling_fields(template: Object) -> Object:
    """Return a pod template without the fields that decide where its pods run."""
    spec = {key: value for key, value in (template.get("spec") or {}).items() if key not in SCHEDULING_FIELDS}
    affinity = without_field(spec.get("affinity") or {}, "nodeAffinity")
    return {"spec": {**without_field(spec, "affinity"), **({"affinity": affinity} if affinity else {})}}


# -- cron jobs


def validate_cron_job_template(value: Any, path: str) -> Iterator[Fault]:
    spec = value.get("spec") or {}
    yield from validate_job_template_spec(spec, f"{path}.spec")
    if spec.get("selector") is not None:
        yield invalid_value(f"{path}.spec.selector", spec["selector"], "`selector` will be auto-generated")
    if spec.get("manualSelector"):
        yield unsupported_value(f"{path}.spec.manualSelector", True, ("nil", "false"))


def validate_schedule(spec: Any, path: str) -> Iterator[Fault]:
    text, at = spec.get("schedule", ""), f"{path}.schedule"
    if not text:
        yield required_value(at)
    elif msg := schedule_error(text):
        yield invalid_value(at, text, msg)
    if "TZ" in text:
        yield invalid_value(at, text, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")


def validate_time_zone(value: Any, path: str) -> Iterator[Fault]:
    parts = value.split("/")
    if any(each in (".", "..") or each.startswith("-") or not TIME_ZONE_PART.fullmatch(each) for each in parts):
        yield invalid_value(path, value, f"unknown time zone {value}")
        return
    if value.lower() == "local":
        msg = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        yield invalid_value(path, value, msg)
        return
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        yield invalid_value(path, value, f"unknown time zone {value}")


validate_cron_job_spec = struct_validator(
    ("", validate_schedule),
    ("startingDeadlineSeconds", validate_nonnegative),
    ("timeZone", validate_time_zone),
    ("concurrencyPolicy", one_of("Allow", "Forbid", "Replace")),
    ("jobTemplate", validate_cron_job_template),
    ("successfulJobsHistoryLimit", validate_nonnegative),
    ("failedJobsHistoryLimit", validate_nonnegative),
)


def validate_cron_job(obj: Object, _: str = "") -> Iterator[Fault]:
    yield from validate_cron_job_spec(obj.get("spec") or {}, "spec")
    if len(name := obj["metadata"]["name"]) > MAX_CRON_JOB_NAME_LENGTH:
        yield invalid_value("metadata.name", name, f"must be no more than {MAX_CRON_JOB_NAME_LENGTH} characters")


# -- schedules

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
SCHEDULE_FIELD_BOUNDS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, MONTHS),
    (0, 6, DAYS),
)
MAX_NUMBER_DIGITS = 18
"""Limit of digits in one number of a schedule."""
DESCRIPTORS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
DURATION = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))*")


class ScheduleError(ValueError):
    """The cron schedule is invalid. The message is that of the parser that Kubernetes uses."""


def schedule_error(text: str) -> str:
    """Return the error of an invalid schedule; empty if it is valid."""
    try:
        check_schedule(text)
    except ScheduleError as error:
        return str(error)
    return ""


def check_schedule(text: str) -> None:
    if text.startswith(("TZ=", "CRON_TZ=")):
        text = text.partition(" ")[2].strip()
    if text.startswith("@every "):
        if not DURATION.fullmatch(text.removeprefix("@every ")):
            duration = text.removeprefix("@every ")
            raise ScheduleError(f'failed to parse duration {text}: time: invalid duration "{duration}"')
        return
    if text.startswith("@"):
        if text not in DESCRIPTORS:
            raise ScheduleError(f"unrecognized descriptor: {text}")
        return
    fields = text.split()
    if len(fields) != len(SCHEDULE_FIELD_BOUNDS):
        raise ScheduleError(
            f"expected exactly {len(SCHEDULE_FIELD_BOUNDS)} fields, found {len(fields)}: [{' '.join(fields)}]"
        )
    for field, bounds in zip(fields, SCHEDULE_FIELD_BOUNDS, strict=True):
        for part in filter(None, field.split(",")):
            check_range(part, *bounds)


def check_range(text: str, minimum: int, maximum: int, month_names: tuple[str, ...]) -> None:
    range_text, *steps = text.split("/")
    low, *highs = range_text.split("-")
    if low in ("*", "?"):
        start, end = minimum, maximum
    else:
        start = parse_schedule_number(low, month_names, minimum)
        if len(highs) > 1:
            raise ScheduleError(f"too many hyphens: {text}")
        end = parse_schedule_number(highs[0], month_names, minimum) if highs else start
    if len(steps) > 1:
        raise ScheduleError(f"too many slashes: {text}")
    step = parse_schedule_number(steps[0], (), minimum) if steps else 1
    if steps and not highs:
        end = maximum
    if start < minimum:
        raise ScheduleError(f"beginning of range ({start}) below minimum ({minimum}): {text}")
    if end > maximum:
        raise ScheduleError(f"end of range ({end}) above maximum ({maximum}): {text}")
    if start > end:
        raise ScheduleError(f"beginning of range ({start}) beyond end of range ({end}): {text}")
    if step == 0:
        raise ScheduleError(f"step of range should be a positive number: {text}")


def parse_schedule_number(text: str, month_names: tuple[str, ...], minimum: int) -> int:
    if text.lower() in month_names:
        return month_names.index(text.lower()) + minimum
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    if len(text) > MAX_NUMBER_DIGITS:
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": value out of range')
    if (number := int(text)) < 0:
        raise ScheduleError(f"negative number ({number}) not allowed: {text}")
    return number

"""Operations of `tapestry k` on a cluster, one method per verb."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tapestry.client.client import Client
from tapestry.client.logs import pod_log
from tapestry.client.options import Propagation
from tapestry.client.watch import wait_for
from tapestry.inspect.anykind.resource_mapper import (
    ServedResource,
    Target,
    discover,
    display_name,
    parse_targets,
    resource_of_object,
)
from tapestry.inspect.anykind.views import ListOptions, description, event_selector, fetch_objects
from tapestry.inspect.anykind.wait_conditions import parse_wait_condition
from tapestry.inspect.snapshots import QueryError
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import (
    Object,
    annotations_of,
    name_of,
    namespace_of,
    object_named,
    value_at,
    version_of,
    with_value,
)
from tapestry.kube.pods import DEFAULT_CONTAINER_ANNOTATION, containers_of, default_container
from tapestry.kube.resources import CRDS, EVENTS, PODS, Resource

FIELD_MANAGER = "tapestry-k"
AnnotationChanges = dict[str, str | None]
"""Values by key; None removes the annotation."""
ESTABLISHED_TIMEOUT = 30.0
"""Seconds to wait until a new kind is served."""
MAX_LINE_BYTES = 1 << 20
"""Bytes after which a line is written in parts, which may mix with lines of other logs."""


@dataclass
class KubectlLite:
    """Operations in one namespace, unless an object names another."""

    client: Client
    namespace: str
    _served: list[ServedResource] = field(default_factory=list)

    async def served_resources(self) -> list[ServedResource]:
        if not self._served:
            self._served = await discover(self.client)
        return self._served

    async def targets(self, words: Sequence[str]) -> list[Target]:
        return parse_targets(words, await self.served_resources())

    async def resource_for(self, obj: Object) -> Resource:
        """Return the resource of an object; discover again if the kind is unknown."""
        found = resource_of_object(obj, await self.served_resources())
        if found is None:
            self._served = []
            found = resource_of_object(obj, await self.served_resources())
        if found is None:
            raise QueryError(f"the server has no kind {obj['kind']} in {obj['apiVersion']}; apply its definition first")
        return found

    def with_namespace(self, resource: Resource, obj: Object) -> Object:
        """Return the object with its own namespace, or else the default one."""
        if not resource.namespaced or namespace_of(obj):
            return obj
        return with_value(obj, ("metadata", "namespace"), self.namespace)

    # -- verbs; each returns a message with the result

    async def apply(self, obj: Object, *, force: bool = False) -> str:
        resource = await self.resource_for(obj)
        desired = self.with_namespace(resource, obj)
        before = await self.current_version(resource, desired)
        try:
            after = await self.client.apply(resource, desired, manager=FIELD_MANAGER, force=force)
        except Conflict as error:
            raise QueryError(
                f"{display_name(resource, name_of(obj))}: {error.message}; --force-conflicts overrides"
            ) from None
        if resource == CRDS:
            await self.wait_for_established(name_of(obj))
        outcome = "created" if not before else "unchanged" if before == version_of(after) else "configured"
        return f"{display_name(resource, name_of(obj))} {outcome}"

    async def current_version(self, resource: Resource, obj: Object) -> str:
        """Return the current resource version; empty if the object does not exist."""
        found = await self.client.find(resource, name_of(obj), namespace_of(obj))
        return version_of(found) if found is not None else ""

    async def wait_for_established(self, definition: str) -> None:
        await wait_for(
            self.client,
            CRDS,
            definition,
            until=lambda obj: obj is not None and is_condition_true(obj, "Established"),
            timeout=ESTABLISHED_TIMEOUT,
        )
        self._served = []

    async def create(self, obj: Object) -> str:
        resource = await self.resource_for(obj)
        await self.client.create(resource, self.with_namespace(resource, obj))
        return f"{display_name(resource, name_of(obj))} created"

    async def annotate(self, resource: Resource, name: str, changes: AnnotationChanges) -> str:
        target = self.with_namespace(resource, object_named(name))
        await self.client.patch(resource, target, {"metadata": {"annotations": changes}})
        return f"{display_name(resource, name)} annotated"

    async def delete(self, resource: Resource, obj: Object, *, grace: int | None, wait: float) -> str:
        """Delete an object and wait up to `wait` seconds until it is gone."""
        target = self.with_namespace(resource, object_named(name_of(obj), namespace_of(obj)))
        current = await self.client.get(resource, name_of(target), namespace_of(target))
        await self.client.delete(resource, target, grace_seconds=grace, propagation=Propagation.BACKGROUND)
        if wait:
            is_gone = parse_wait_condition("delete", current)
            await wait_for(self.client, resource, name_of(current), namespace_of(current), until=is_gone, timeout=wait)
        return f"{display_name(resource, name_of(obj))} deleted"

    async def wait(self, resource: Resource, name: str, goal: str, timeout: float) -> str:
        namespace = self.namespace if resource.namespaced else None
        current: Object | None = None
        try:
            current = await self.client.get(resource, name, namespace)
        except NotFound:
            if goal not in ("create", "delete"):
                raise
        until = parse_wait_condition(goal, current)
        await wait_for(self.client, resource, name, namespace, until=until, timeout=timeout)
        return f"{display_name(resource, name)} {'deleted' if goal == 'delete' else 'condition met'}"

    async def describe(self, obj: Object) -> str:
        events = await self.client.list(EVENTS, namespace_of(obj), fields=event_selector(obj))
        return description(obj, events)

    async def pod_name_for(self, words: Sequence[str]) -> str:
        """Return the named pod, or a pod that the named workload selects."""
        if "/" not in words[0]:
            return words[0]
        (target,) = await self.targets(words)
        if target.resource == PODS:
            return target.names[0]
        (owner,) = await fetch_objects(self.client, target, ListOptions(self.namespace))
        labels = value_at(owner, "spec", "selector", "matchLabels")
        if not labels:
            raise QueryError(f"{words[0]} selects no pods; `tapestry k get pods` lists pods by name")
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found = await self.client.list(PODS, self.namespace, labels=selector)
        if not found:
            raise QueryError(f"{words[0]} has no pods in namespace {self.namespace}")
        return name_of(min(found, key=pod_preference))

    async def pod(self, name: str) -> Object:
        return await self.client.get(PODS, name, self.namespace)

    async def logs(self, pod: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        """Yield the log of a container in chunks."""
        async with pod_log(self.client, pod, self.namespace, query) as chunks:
            async for chunk in chunks:
                yield chunk


def split_annotation_arguments(words: Sequence[str]) -> tuple[Sequence[str], AnnotationChanges]:
    """Split into the words that name objects and the changes after them: `KEY=VALUE` or `KEY-`."""
    count = sum(1 for _ in takewhile(lambda word: "=" not in word and not word.endswith("-"), words))
    changes: AnnotationChanges = {}
    for word in words[count:]:
        key, equals, value = word.partition("=")
        if not equals and not key.endswith("-"):
            raise ValueError(f"{word!r}: expected KEY=VALUE or KEY-, like the words before it")
        changes[key if equals else key[:-1]] = value if equals else None
    if not changes:
        raise ValueError("no change given; add KEY=VALUE or KEY-")
    return words[:count], changes


def defaulted_note(pod: Object) -> str:
    """Return a note, as kubectl writes it, if the first of several containers was chosen; empty otherwise."""
    names = [each["name"] for each in pod["spec"]["containers"]]
    for others, mark in (("ephemeralContainers", "ephem"), ("initContainers", "init")):
        names += [f"{each['name']} ({mark})" for each in containers_of(pod, [others])]
    is_annotated = annotations_of(pod).get(DEFAULT_CONTAINER_ANNOTATION) == default_container(pod)
    if len(names) == 1 or is_annotated:
        return ""
    return f'Defaulted container "{default_container(pod)}" out of: {", ".join(names)}'


def pod_preference(pod: Object) -> tuple[bool, str]:
    """Return a sort key: running pods first, then by name."""
    return value_at(pod, "status", "phase") != "Running", name_of(pod)


def kind_rows(known: Iterable[ServedResource]) -> list[list[str]]:
    return [
        [
            each.resource.plural,
            ",".join(sorted(each.names - {each.resource.plural, each.resource.kind.lower()})),
            each.resource.api_version,
            "yes" if each.resource.namespaced else "no",
            each.resource.kind,
        ]
        for each in known
        if "list" in each.verbs
    ]


async def copy_lines(logs: Iterable[AsyncIterator[bytes]], write: Callable[[bytes], object]) -> None:
    """Write the lines of all logs as they arrive, until all logs have ended.  Raise the first error of one."""
    try:
        async with asyncio.TaskGroup() as group:
            for log in logs:
                group.create_task(copy_log(log, write))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def copy_log(log: AsyncIterator[bytes], write: Callable[[bytes], object]) -> None:
    rest = b""
    async for chunk in log:
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, newline, rest = lines + newline + rest, b"", b""
        if lines or newline:
            write(lines + newline)
    if rest:
        write(rest)

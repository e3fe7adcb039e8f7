"""`tapestry k`: kubectl-like commands for objects of any kind, with kubectl's flags."""

import asyncio
import math
import re
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import click
from click.exceptions import Exit

from tapestry.apis.release import install_command
from tapestry.cli.cluster_access import (
    ALL_NAMESPACES_OPTION,
    FORMATS,
    completer_for,
    completion_client,
    error_message,
    name_completer,
    object_names,
    with_output,
)
from tapestry.cli.help_text import command
from tapestry.cli.kubectl_command import CONTAINER_OPTION, default_container_with_note, kubectl_command
from tapestry.client.transport import JSON
from tapestry.inspect.anykind import manifests, views
from tapestry.inspect.anykind.kubectl_lite import KubectlLite, copy_lines, kind_rows, split_annotation_arguments
from tapestry.inspect.anykind.resource_mapper import Target, discover, display_name, resources_named
from tapestry.inspect.anykind.views import ListOptions
from tapestry.inspect.anykind.wait_conditions import CONDITION_FORMS
from tapestry.inspect.snapshots import QueryError
from tapestry.inspect.tables import table
from tapestry.kube.errors import KubeError, NotFound
from tapestry.kube.objects import Object, name_of, object_named
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of
from tapestry.kube.resources import PODS, Resource

UNIT_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


async def kinds_or_names(context: click.Context) -> list[str]:
    """Complete a kind, or the names of objects of the kind given first."""
    words = context.params.get("words") or ()
    async with completion_client(context) as (client, namespace):
        known = await discover(client)
        if not words:
            return sorted(each.resource.plural for each in known if "list" in each.verbs)
        return await object_names(client, resources_named(words[0], known)[0], namespace)


KIND_OR_NAME_COMPLETER = completer_for(kinds_or_names)
TARGETS_ARGUMENT = click.argument(
    "words", nargs=-1, required=True, metavar="KIND [NAME]... | KIND/NAME...", shell_complete=KIND_OR_NAME_COMPLETER
)
SELECTOR_OPTION = click.option("--selector", "-l", "labels", default="", help="Label selector, for example app=web.")
FILENAME_OPTION = click.option(
    "--filename", "-f", "files", multiple=True, help="File or folder with objects; - is standard input. Repeatable."
)
COMMAND_ARGUMENT = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG]...]")
IMAGE_OPTION = click.option("--image", required=True, help="Image of the container.")


class Duration(click.ParamType[float]):
    """Duration such as `30s`, `2m` or `1h`; a plain number means seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", value)
        if found is None:
            self.fail(f"{value!r} is not a duration such as 30s or 2m", param, ctx)
        return float(found[1]) * UNIT_SECONDS[found[2]]


class ResultReporter:
    """Print the result for each object and record failures."""

    def __init__(self) -> None:
        self.failed = False

    async def report(self, work: Coroutine[Any, Any, str]) -> None:
        try:
            click.echo(await work)
        except (KubeError, QueryError, TimeoutError) as error:
            self.failed = True
            click.echo(f"Error: {error_message(error)}", err=True)

    def exit_if_failed(self) -> None:
        if self.failed:
            raise Exit(1)


POD_COMMANDS = ("attach", "cp", "exec", "port-forward", "top")
"""Commands in `tapestry.cli.pod_access`, which is imported when one of them is called."""


class KubectlGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *POD_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in POD_COMMANDS:
            return super().get_command(ctx, cmd_name)
        from tapestry.cli import pod_access

        return pod_access.COMMANDS[cmd_name]


@click.group(cls=KubectlGroup)
def k() -> None:
    """Get, apply, create, annotate, delete, describe and wait for objects, and use pods, without kubectl."""


@command("tapestry k kinds", parent=k)
@kubectl_command
async def kinds(kubectl: KubectlLite) -> None:
    """List the served kinds with their short names."""
    rows = kind_rows(await kubectl.served_resources())
    click.echo(table(["NAME", "ALSO", "API-VERSION", "NAMESPACED", "KIND"], rows))


@command(
    "tapestry k get pods -A -o wide", "tapestry k get deploy,svc -l app=web", "tapestry k get cb/east -o yaml", parent=k
)
@TARGETS_ARGUMENT
@SELECTOR_OPTION
@click.option("--field-selector", "fields", default="", help="Field selector, for example status.phase=Running.")
@ALL_NAMESPACES_OPTION
@click.option("--watch", "-w", is_flag=True, help="After listing, print changes until Ctrl-C.")
@with_output(*FORMATS, "name")
@kubectl_command
async def get(
    kubectl: KubectlLite, words: tuple[str, ...], labels: str, fields: str, everywhere: bool, watch: bool, output: str
) -> None:
    """Show objects of one or more kinds."""
    targets = await kubectl.targets(words)
    list_options = ListOptions(None if everywhere else kubectl.namespace, labels, fields)
    if everywhere and any(target.names for target in targets):
        raise click.UsageError("-A cannot be combined with names: it shows all objects of a kind")
    if watch and (len(targets) > 1 or len(targets[0].names) > 1):
        raise click.UsageError("-w watches one kind, or one object")
    printer = ObjectPrinter(kubectl, list_options, output)
    await (printer.print_changes(targets[0]) if watch else printer.print_objects(targets))


class ObjectPrinter:
    def __init__(self, kubectl: KubectlLite, options: ListOptions, output: str) -> None:
        self.kubectl, self.options, self.output = kubectl, options, output
        self.is_table = output in ("table", "wide")

    async def print_objects(self, targets: list[Target]) -> None:
        if not self.is_table:
            client = self.kubectl.client
            found = [obj for target in targets for obj in await views.fetch_objects(client, target, self.options)]
            single = len(targets) == 1 and len(targets[0].names) == 1
            if text := views.objects_text(found, self.output, single=single):
                click.echo(text)
            return
        texts = []
        for target in targets:
            tables = await views.fetch_responses(self.kubectl.client, target, self.options, views.TABLE_ACCEPT)
            prefix = display_name(target.resource, "") if len(targets) > 1 else ""
            if text := self.table_text(target, tables, prefix):
                texts.append(text)
        click.echo("\n\n".join(texts) or self.empty_message(targets), err=not texts)

    def table_text(self, target: Target, tables: list[Object], prefix: str = "") -> str:
        spaces = self.options.namespace is None and target.resource.namespaced
        return views.table_text(tables, wide=self.output == "wide", with_namespace=spaces, prefix=prefix)

    def empty_message(self, targets: list[Target]) -> str:
        """Return the message for an empty result, which is not an error."""
        in_namespace = any(target.resource.namespaced for target in targets) and self.options.namespace
        return f"none found in namespace {self.options.namespace}" if in_namespace else "none found"

    async def print_changes(self, target: Target) -> None:
        accept = views.TABLE_ACCEPT if self.is_table else JSON
        first = (await views.fetch_responses(self.kubectl.client, target, self.options, accept))[0]
        await self.print_objects([target])
        version = views.list_version(first)
        async for type, found in views.watch_events(self.kubectl.client, target, self.options, version, accept):
            if self.is_table:
                header = first.get("columnDefinitions") or found.get("columnDefinitions")
                lines = self.table_text(target, [{**found, "columnDefinitions": header}]).splitlines()[1:]
                click.echo("\n".join(f"{line}   (deleted)" if type == "DELETED" else line for line in lines))
            else:
                click.echo(views.objects_text([found], self.output, single=True))


@command("tapestry k apply -f policy.yaml", install_command("tapestry k apply"), parent=k)
@click.option(
    "--filename", "-f", "files", multiple=True, required=True, help="File, folder, or - for standard input. Repeatable."
)
@click.option("--force-conflicts", "force", is_flag=True, help="Take over fields of other field managers.")
@kubectl_command
async def apply(kubectl: KubectlLite, files: tuple[str, ...], force: bool) -> None:
    """Create or change objects from files with server-side apply."""
    reporter = ResultReporter()
    for obj in manifests.load_objects(files, sys.stdin.buffer):
        await reporter.report(kubectl.apply(obj, force=force))
    reporter.exit_if_failed()


@k.group()
def create() -> None:
    """Create simple objects; use `apply` for objects in files."""


def requests_callback(_: click.Context, __: click.Parameter, text: str) -> manifests.Requests:
    try:
        return manifests.parse_requests(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


REQUESTS_OPTION = click.option(
    "--requests", default="", callback=requests_callback, help="Requests of each pod, such as cpu=500m,memory=64Mi."
)


@command("tapestry k create deployment web --image nginx --replicas 20 --requests cpu=250m", parent=create)
@click.argument("name")
@IMAGE_OPTION
@REQUESTS_OPTION
@click.option("--replicas", "-r", type=click.IntRange(min=0), default=1, show_default=True, help="Number of pods.")
@COMMAND_ARGUMENT
@kubectl_command
async def deployment(
    kubectl: KubectlLite, name: str, image: str, requests: manifests.Requests, replicas: int, command: tuple[str, ...]
) -> None:
    """Create a Deployment of one container."""
    click.echo(await kubectl.create(manifests.deployment(name, image, replicas, command, requests)))


@command("tapestry k create job pi --image perl --completions 20 -- perl -e 'print 3'", parent=create)
@click.argument("name")
@IMAGE_OPTION
@REQUESTS_OPTION
@click.option("--completions", type=click.IntRange(min=1), default=1, show_default=True, help="Number of pods to run.")
@COMMAND_ARGUMENT
@kubectl_command
async def job(
    kubectl: KubectlLite,
    name: str,
    image: str,
    requests: manifests.Requests,
    completions: int,
    command: tuple[str, ...],
) -> None:
    """Create a Job of one container.  Pods deleted by a reclaim do not count as failures."""
    click.echo(await kubectl.create(manifests.job(name, image, completions, command, requests)))


@command("tapestry k create namespace team-a", parent=create)
@click.argument("name")
@kubectl_command
async def namespace(kubectl: KubectlLite, name: str) -> None:
    """Create a namespace."""
    click.echo(await kubectl.create(manifests.namespace(name)))


@command("tapestry k delete deploy web", "tapestry k delete pods --all", "tapestry k delete -f web.yaml", parent=k)
@click.argument("words", nargs=-1, metavar="KIND [NAME]... | KIND/NAME...", shell_complete=KIND_OR_NAME_COMPLETER)
@FILENAME_OPTION
@SELECTOR_OPTION
@click.option("--all", "every", is_flag=True, help="Delete all objects of the kind.")
@click.option("--grace-period", "grace", type=click.IntRange(min=0), help="Seconds that pods get to terminate.")
@click.option("--ignore-not-found", "lenient", is_flag=True, help="Treat missing objects as deleted.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the objects are gone.")
@click.option("--timeout", type=Duration(), default="60s", show_default=True, help="Time to wait for each object.")
@kubectl_command
async def delete(
    kubectl: KubectlLite,
    words: tuple[str, ...],
    files: tuple[str, ...],
    labels: str,
    every: bool,
    grace: int | None,
    lenient: bool,
    no_wait: bool,
    timeout: float,
) -> None:
    """Delete objects and wait until they are gone."""
    if not (words or files):
        raise click.UsageError("specify the objects: KIND NAME, KIND/NAME, or -f FILE")
    targets = [
        (await kubectl.resource_for(obj), obj) for obj in reversed(manifests.load_objects(files, sys.stdin.buffer))
    ]
    targets += await selected_objects(kubectl, words, labels, every=every) if words else []
    reporter = ResultReporter()
    for resource, obj in targets:
        await reporter.report(
            delete_object(kubectl, resource, obj, grace, 0.0 if no_wait else timeout, lenient=lenient)
        )
    reporter.exit_if_failed()


async def selected_objects(
    kubectl: KubectlLite, words: Sequence[str], labels: str, *, every: bool
) -> list[tuple[Resource, Object]]:
    """Return the selected objects; named ones need not exist, and all of a kind need `every`."""
    found: list[tuple[Resource, Object]] = []
    for target in await kubectl.targets(words):
        if not (target.names or labels or every):
            raise click.UsageError(f"specify the {target.resource.plural}: names, -l or --all")
        if target.names:
            found += [(target.resource, object_named(name)) for name in target.names]
        else:
            objects = await views.fetch_objects(kubectl.client, target, ListOptions(kubectl.namespace, labels))
            found += [(target.resource, each) for each in objects]
    return found


async def delete_object(
    kubectl: KubectlLite, resource: Resource, obj: Object, grace: int | None, wait: float, *, lenient: bool
) -> str:
    try:
        return await kubectl.delete(resource, obj, grace=grace, wait=wait)
    except NotFound:
        if lenient:
            return f"{display_name(resource, name_of(obj))} not found"
        raise


@command(
    "tapestry k annotate node worker-1 tapestry.io/reclaim=now",
    "tapestry k annotate node worker-1 tapestry.io/reclaim-",
    parent=k,
)
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="KIND NAME... | KIND/NAME...  KEY=VALUE | KEY- ...",
    shell_complete=KIND_OR_NAME_COMPLETER,
)
@kubectl_command
async def annotate(kubectl: KubectlLite, words: tuple[str, ...]) -> None:
    """Add annotations to objects, or remove them with KEY-."""
    targets, changes = split_annotation_arguments(words)
    reporter = ResultReporter()
    for target in await kubectl.targets(targets):
        if not target.names:
            raise click.UsageError(f"specify the names of the {target.resource.plural}")
        for name in target.names:
            await reporter.report(kubectl.annotate(target.resource, name, changes))
    reporter.exit_if_failed()


@command("tapestry k describe pod web-0", "tapestry k describe cb east", parent=k)
@TARGETS_ARGUMENT
@SELECTOR_OPTION
@kubectl_command
async def describe(kubectl: KubectlLite, words: tuple[str, ...], labels: str) -> None:
    """Show objects and their recent events."""
    found = [
        obj
        for target in await kubectl.targets(words)
        for obj in await views.fetch_objects(kubectl.client, target, ListOptions(kubectl.namespace, labels))
    ]
    click.echo("\n---\n".join([await kubectl.describe(obj) for obj in found]) or "none found", err=not found)


@command("tapestry k logs web-0 --tail 20", "tapestry k logs -f deployment/web --all-containers", parent=k)
@click.argument("pod", metavar="POD | KIND/NAME", shell_complete=name_completer(PODS))
@CONTAINER_OPTION
@click.option("--all-containers", is_flag=True, help="Print the logs of all containers of the pod.")
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the container ends or Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), help="Number of last lines to print.")
@click.option("--previous", "-p", is_flag=True, help="Print the log of the container before its last restart.")
@click.option("--since", type=Duration(), help="Print only lines that are newer than this, for example 5m.")
@click.option("--timestamps", is_flag=True, help="Print the time of each line.")
@click.option("--limit-bytes", type=click.IntRange(min=1), help="Number of bytes to print at most.")
@kubectl_command
async def logs(
    kubectl: KubectlLite,
    pod: str,
    container: str | None,
    all_containers: bool,
    follow: bool,
    tail: int | None,
    previous: bool,
    since: float | None,
    timestamps: bool,
    limit_bytes: int | None,
) -> None:
    """Print the log of a container, or of all containers of a pod."""
    if container and all_containers:
        raise click.UsageError("--all-containers cannot be combined with -c")
    options = {
        "follow": "true" if follow else None,
        "tailLines": None if tail is None else str(tail),
        "previous": "true" if previous else None,
        "sinceSeconds": None if since is None else str(max(1, math.ceil(since))),
        "timestamps": "true" if timestamps else None,
        "limitBytes": None if limit_bytes is None else str(limit_bytes),
    }
    query = {key: value for key, value in options.items() if value is not None}
    name = await kubectl.pod_name_for([pod])
    containers = [container] if container else await containers_to_read(kubectl, name, every=all_containers)
    contents = [kubectl.logs(name, {**query, "container": each}) for each in containers]
    if follow and all_containers:
        await copy_lines(contents, partial(click.echo, nl=False))
        return
    for content in contents:
        async for chunk in content:
            click.echo(chunk, nl=False)


async def containers_to_read(kubectl: KubectlLite, name: str, *, every: bool) -> list[str]:
    """Return the containers of a pod, or the one that kubectl uses if none is named."""
    pod = await kubectl.pod(name)
    if not every:
        return [default_container_with_note(pod)]
    return [each["name"] for each in containers_of(pod, CONTAINER_FIELDS)]


@command(
    "tapestry k wait deploy/web --for condition=Available",
    "tapestry k wait pods --all --for delete --timeout 2m",
    one="a condition was not met in time, or another error",
    parent=k,
)
@TARGETS_ARGUMENT
@SELECTOR_OPTION
@click.option("--for", "goal", required=True, help=f"Condition to wait for: {CONDITION_FORMS}.")
@click.option("--all", "every", is_flag=True, help="Wait for all objects of the kind.")
@click.option("--timeout", type=Duration(), default="30s", show_default=True, help="Time to wait for all objects.")
@kubectl_command
async def wait(
    kubectl: KubectlLite, words: tuple[str, ...], labels: str, goal: str, every: bool, timeout: float
) -> None:
    """Wait until objects meet a condition."""
    targets = await selected_objects(kubectl, words, labels, every=every)
    deadline = asyncio.get_running_loop().time() + timeout
    reporter = ResultReporter()
    for resource, obj in targets:
        seconds_left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        await reporter.report(kubectl.wait(resource, name_of(obj), goal, seconds_left))
    reporter.exit_if_failed()

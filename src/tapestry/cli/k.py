"""`tapestry k`: objects of any kind, for a machine without kubectl.  Flags are kubectl's, as far as they go."""

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import click
from click.exceptions import Exit

from tapestry.cli.clusters import (
    EVERYWHERE,
    NAMESPACE,
    finished,
    message_of,
    opened,
    virtual_access,
    with_virtual_cluster,
)
from tapestry.cli.manual import manual
from tapestry.cli.names import KINDS_AND_NAMES, names_of
from tapestry.cli.output import FORMATS, with_output
from tapestry.client.transport import JSON
from tapestry.inspect.anykind import manifests, views
from tapestry.inspect.anykind.hand import Hand, kinds_rows, parted
from tapestry.inspect.anykind.kinds import Aim, shown_name
from tapestry.inspect.anykind.views import Choice
from tapestry.inspect.anykind.waits import FORMS
from tapestry.inspect.facts import Unknown
from tapestry.inspect.tables import table
from tapestry.kube.errors import KubeError, NotFound
from tapestry.kube.objects import Object, name_of, named
from tapestry.kube.resources import PODS, Resource

SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

WORDS = click.argument(
    "words", nargs=-1, required=True, metavar="KIND [NAME]... | KIND/NAME...", shell_complete=KINDS_AND_NAMES
)
LABELS = click.option("--selector", "-l", "labels", default="", help="Only objects with such labels.")
FILES = click.option("--filename", "-f", "files", multiple=True, help="A file, a folder, or - for what comes in.")
COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG]...]")
IMAGE = click.option("--image", required=True, help="What the container runs.")


class Duration(click.ParamType[float]):
    """`30s`, `2m`, `1h`; a number alone is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", value)
        if found is None:
            self.fail(f"{value!r} is no length of time such as 30s or 2m", param, ctx)
        return float(found[1]) * SECONDS[found[2]]


def handed(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A command of a coroutine that is given a Hand, and the command's own arguments."""

    @wraps(work)
    def command(kubeconfig: str | None, context: str | None, namespace: str | None, **own: Any) -> None:
        async def run() -> None:
            access = virtual_access(kubeconfig, context)
            async with opened(access) as client:
                await work(Hand(client, namespace or access.namespace), **own)

        finished(run())

    return with_virtual_cluster(NAMESPACE(command))


class Tally:
    """Says what comes of each object, and remembers whether all went well."""

    def __init__(self) -> None:
        self.failed = False

    async def each(self, work: Coroutine[Any, Any, str]) -> None:
        try:
            click.echo(await work)
        except (KubeError, Unknown, TimeoutError) as error:
            self.failed = True
            click.echo(f"Error: {message_of(error)}", err=True)

    def end(self) -> None:
        if self.failed:
            raise Exit(1)


@click.group()
def k() -> None:
    """Get, apply, create, annotate, delete, describe, wait for objects, and read logs; no kubectl is needed."""


@k.command(epilog=manual("tapestry k kinds"))
@handed
async def kinds(hand: Hand) -> None:
    """List the kinds that there are, with their other names."""
    rows = kinds_rows(await hand.known())
    click.echo(table(["NAME", "ALSO", "API-VERSION", "NAMESPACED", "KIND"], rows))


@k.command(
    epilog=manual(
        "tapestry k get pods -A -o wide", "tapestry k get deploy,svc -l app=web", "tapestry k get cb/east -o yaml"
    )
)
@WORDS
@LABELS
@click.option("--field-selector", "fields", default="", help="Only objects with such fields.")
@EVERYWHERE
@click.option("--watch", "-w", is_flag=True, help="Then show what changes, until Ctrl-C.")
@with_output(*FORMATS, "name")
@handed
async def get(
    hand: Hand, words: tuple[str, ...], labels: str, fields: str, everywhere: bool, watch: bool, output: str
) -> None:
    """Show objects."""
    found = await hand.aims(words)
    choice = Choice(None if everywhere else hand.namespace, labels, fields)
    if everywhere and any(aim.names for aim in found):
        raise click.UsageError("-A shows all objects of a kind; an object that is named is in one namespace")
    if watch and (len(found) > 1 or len(found[0].names) > 1):
        raise click.UsageError("-w watches one kind, or one object")
    shown = Shown(hand, choice, output)
    await (shown.watch(found[0]) if watch else shown.once(found))


class Shown:
    """Objects on a terminal."""

    def __init__(self, hand: Hand, choice: Choice, output: str) -> None:
        self.hand, self.choice, self.output = hand, choice, output
        self.tabled = output in ("table", "wide")

    async def once(self, aims: list[Aim]) -> None:
        if not self.tabled:
            found = [obj for aim in aims for obj in await views.objects(self.hand.client, aim, self.choice)]
            alone = len(aims) == 1 and len(aims[0].names) == 1
            if text := views.plain_text(found, self.output, alone=alone):
                click.echo(text)
            return
        texts = []
        for aim in aims:
            tables = await views.answers(self.hand.client, aim, self.choice, views.TABLE)
            prefix = shown_name(aim.resource, "") if len(aims) > 1 else ""
            if text := self.text(aim, tables, prefix):
                texts.append(text)
        click.echo("\n\n".join(texts) or self.nothing(aims), err=not texts)

    def text(self, aim: Aim, tables: list[Object], prefix: str = "") -> str:
        spaces = self.choice.namespace is None and aim.resource.namespaced
        return views.table_text(tables, wide=self.output == "wide", spaces=spaces, prefix=prefix)

    def nothing(self, aims: list[Aim]) -> str:
        """That there is none is no error."""
        inside = any(aim.resource.namespaced for aim in aims) and self.choice.namespace
        return f"none found in namespace {self.choice.namespace}" if inside else "none found"

    async def watch(self, aim: Aim) -> None:
        accept = views.TABLE if self.tabled else JSON
        first = (await views.answers(self.hand.client, aim, self.choice, accept))[0]
        await self.once([aim])
        version = views.version_of_answer(first)
        async for type, found in views.changes(self.hand.client, aim, self.choice, version, accept):
            if self.tabled:
                header = first.get("columnDefinitions") or found.get("columnDefinitions")
                lines = self.text(aim, [{**found, "columnDefinitions": header}]).splitlines()[1:]
                click.echo("\n".join(f"{line}   (deleted)" if type == "DELETED" else line for line in lines))
            else:
                click.echo(views.plain_text([found], self.output, alone=True))


@k.command(epilog=manual("tapestry k apply -f policy.yaml", "tapestry manifests | tapestry k apply -f -"))
@click.option(
    "--filename", "-f", "files", multiple=True, required=True, help="A file, a folder, or - for what comes in."
)
@click.option("--force-conflicts", "force", is_flag=True, help="Take over fields that others manage.")
@handed
async def apply(hand: Hand, files: tuple[str, ...], force: bool) -> None:
    """Make objects as files say, by server-side apply."""
    tally = Tally()
    for obj in manifests.objects_in(files, sys.stdin.buffer):
        await tally.each(hand.apply(obj, force=force))
    tally.end()


@k.group()
def create() -> None:
    """Create simple objects; `apply` makes what files say."""


def requested(_: click.Context, __: click.Parameter, text: str) -> manifests.Requests:
    try:
        return manifests.requests_in(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


REQUESTS = click.option(
    "--requests", default="", callback=requested, help="What each pod requests, such as cpu=500m,memory=64Mi."
)


@create.command(epilog=manual("tapestry k create deployment web --image nginx --replicas 20 --requests cpu=250m"))
@click.argument("name")
@IMAGE
@REQUESTS
@click.option("--replicas", "-r", type=click.IntRange(min=0), default=1, show_default=True, help="Pods.")
@COMMAND
@handed
async def deployment(
    hand: Hand, name: str, image: str, requests: manifests.Requests, replicas: int, command: tuple[str, ...]
) -> None:
    """Create a Deployment of one container."""
    click.echo(await hand.create(manifests.deployment(name, image, replicas, command, requests)))


@create.command(epilog=manual("tapestry k create job pi --image perl --completions 20 -- perl -e 'print 3'"))
@click.argument("name")
@IMAGE
@REQUESTS
@click.option("--completions", type=click.IntRange(min=1), default=1, show_default=True, help="Pods, all at once.")
@COMMAND
@handed
async def job(
    hand: Hand, name: str, image: str, requests: manifests.Requests, completions: int, command: tuple[str, ...]
) -> None:
    """Create a Job of one container.  That an owner takes a pod back is no failure of it."""
    click.echo(await hand.create(manifests.job(name, image, completions, command, requests)))


@create.command(epilog=manual("tapestry k create namespace team-a"))
@click.argument("name")
@handed
async def namespace(hand: Hand, name: str) -> None:
    """Create a namespace."""
    click.echo(await hand.create(manifests.namespace(name)))


@k.command(
    epilog=manual("tapestry k delete deploy web", "tapestry k delete pods --all", "tapestry k delete -f web.yaml")
)
@click.argument("words", nargs=-1, metavar="KIND [NAME]... | KIND/NAME...", shell_complete=KINDS_AND_NAMES)
@FILES
@LABELS
@click.option("--all", "every", is_flag=True, help="All objects of the kind.")
@click.option("--grace-period", "grace", type=click.IntRange(min=0), help="Seconds that pods have to end.")
@click.option("--ignore-not-found", "lenient", is_flag=True, help="What is not there counts as deleted.")
@click.option("--no-wait", is_flag=True, help="Do not wait until they are gone.")
@click.option("--timeout", type=Duration(), default="60s", show_default=True, help="How long to wait for each.")
@handed
async def delete(
    hand: Hand,
    words: tuple[str, ...],
    files: tuple[str, ...],
    labels: str,
    every: bool,
    grace: int | None,
    lenient: bool,
    no_wait: bool,
    timeout: float,
) -> None:
    """Delete objects, and wait until they are gone."""
    if not (words or files):
        raise click.UsageError("say which: KIND NAME, KIND/NAME, or -f FILE")
    targets = [(await hand.home(obj), obj) for obj in reversed(manifests.objects_in(files, sys.stdin.buffer))]
    targets += await chosen(hand, words, labels, every=every) if words else []
    tally = Tally()
    for resource, obj in targets:
        await tally.each(deleted(hand, resource, obj, grace, 0.0 if no_wait else timeout, lenient=lenient))
    tally.end()


async def chosen(hand: Hand, words: Sequence[str], labels: str, *, every: bool) -> list[tuple[Resource, Object]]:
    """The objects that are meant; those that are named need not exist, and all of a kind are only if that is said."""
    found: list[tuple[Resource, Object]] = []
    for aim in await hand.aims(words):
        if not (aim.names or labels or every):
            raise click.UsageError(f"which {aim.resource.plural}? names, -l or --all say so")
        if aim.names:
            found += [(aim.resource, named(name)) for name in aim.names]
        else:
            objects = await views.objects(hand.client, aim, Choice(hand.namespace, labels))
            found += [(aim.resource, each) for each in objects]
    return found


async def deleted(hand: Hand, resource: Resource, obj: Object, grace: int | None, wait: float, *, lenient: bool) -> str:
    try:
        return await hand.delete(resource, obj, grace=grace, wait=wait)
    except NotFound:
        if lenient:
            return f"{shown_name(resource, name_of(obj))} not found"
        raise


@k.command(
    epilog=manual(
        "tapestry k annotate node worker-1 tapestry.io/reclaim=now",
        "tapestry k annotate node worker-1 tapestry.io/reclaim-",
    )
)
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="KIND NAME... | KIND/NAME...  KEY=VALUE | KEY- ...",
    shell_complete=KINDS_AND_NAMES,
)
@handed
async def annotate(hand: Hand, words: tuple[str, ...]) -> None:
    """Give objects annotations, or take them away by KEY-."""
    targets, changes = parted(words)
    tally = Tally()
    for aim in await hand.aims(targets):
        if not aim.names:
            raise click.UsageError(f"which {aim.resource.plural}? names say so")
        for name in aim.names:
            await tally.each(hand.annotate(aim.resource, name, changes))
    tally.end()


@k.command(epilog=manual("tapestry k describe pod web-0", "tapestry k describe cb east"))
@WORDS
@LABELS
@handed
async def describe(hand: Hand, words: tuple[str, ...], labels: str) -> None:
    """Show objects as they stand, and what was told of them lately."""
    found = [
        obj
        for aim in await hand.aims(words)
        for obj in await views.objects(hand.client, aim, Choice(hand.namespace, labels))
    ]
    click.echo("\n---\n".join([await hand.describe(obj) for obj in found]) or "none found", err=not found)


@k.command(epilog=manual("tapestry k logs web-0 --tail 20", "tapestry k logs -f deployment/web -c web"))
@click.argument("pod", metavar="POD | KIND/NAME", shell_complete=names_of(PODS))
@click.option("--container", "-c", help="Of the pod's containers.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until the container or Ctrl-C ends it.")
@click.option("--tail", type=click.IntRange(min=0), help="So many of the last lines.")
@click.option("--previous", "-p", is_flag=True, help="Of the container before its last restart.")
@handed
async def logs(hand: Hand, pod: str, container: str | None, follow: bool, tail: int | None, previous: bool) -> None:
    """Show what a container wrote."""
    told = {
        "container": container,
        "follow": "true" if follow else None,
        "tailLines": None if tail is None else str(tail),
        "previous": "true" if previous else None,
    }
    query = {key: value for key, value in told.items() if value is not None}
    async for chunk in hand.logs(await hand.pod([pod]), query):
        click.echo(chunk, nl=False)


@k.command(
    epilog=manual(
        "tapestry k wait deploy/web --for condition=Available",
        "tapestry k wait pods --all --for delete --timeout 2m",
        one="some were not so in time, or it failed",
    )
)
@WORDS
@LABELS
@click.option("--for", "goal", required=True, help=f"{FORMS}.")
@click.option("--all", "every", is_flag=True, help="All objects of the kind.")
@click.option("--timeout", type=Duration(), default="30s", show_default=True, help="For all of them together.")
@handed
async def wait(hand: Hand, words: tuple[str, ...], labels: str, goal: str, every: bool, timeout: float) -> None:
    """Wait until objects are as they should be."""
    targets = await chosen(hand, words, labels, every=every)
    due = asyncio.get_running_loop().time() + timeout
    tally = Tally()
    for resource, obj in targets:
        left = max(due - asyncio.get_running_loop().time(), 0.0)
        await tally.each(hand.wait(resource, name_of(obj), goal, left))
    tally.end()

"""Findings: what is well in a world, what is not, and what to do about it.

Each function looks at one thing; all are pure, and say nothing of what they were not shown.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from tapestry.apis import keys
from tapestry.apis.clusterbindings import LAST_SEEN_INTERVAL
from tapestry.inspect.status import BindingStatus, NodeStatus, PolicyStatus, Printable
from tapestry.inspect.tables import duration_text, plural_text, table
from tapestry.kube.objects import Object, annotations_of, key_of, name_of, value_at
from tapestry.kube.times import parse_time, timestamp

TOKEN_WARNING = timedelta(days=7)
SILENCE_LIMIT, UNREPORTED_LIMIT = timedelta(minutes=1), 2 * LAST_SEEN_INTERVAL
"""For so long a cluster gave no answer, where that is known; and nobody said that it did, where not."""
CLOCK_SKEW_WARNING, CLOCK_SKEW_ERROR = timedelta(seconds=2), timedelta(seconds=30)
DISK_WARNING_BYTES, DISK_ERROR_BYTES = 1 << 30, 100 << 20
"""Bytes on a disk."""

Level = Literal["ok", "warning", "wrong"]
LEVEL_LABELS: dict[Level, str] = {"ok": "ok", "warning": "!", "wrong": "WRONG"}


class Finding(Printable, frozen=True):
    about: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty where all is well."""


def clock_findings(theirs: datetime | None, ours: datetime) -> Iterator[Finding]:
    """How the server's clock stands to ours; it tells whole seconds."""
    if theirs is None:
        return
    difference = abs(theirs - ours)
    level: Level = "wrong" if difference > CLOCK_SKEW_ERROR else "warning" if difference > CLOCK_SKEW_WARNING else "ok"
    text = f"the server's differs from ours by {duration_text(difference)}"
    advice = "have both machines set their clocks by NTP: windows, leases and tokens go by them"
    yield Finding("clock", level, text if level != "ok" else "as the server's", advice if level != "ok" else "")


def leader_finding(about: str, lease: Object | None, now: datetime, advice: str) -> Finding:
    """Whether somebody holds a Lease, and has said so lately."""
    if lease is None:
        return Finding(about, "wrong", "nobody has ever led", advice)
    spec = lease.get("spec") or {}
    renewed, lasts = spec.get("renewTime"), timedelta(seconds=spec.get("leaseDurationSeconds") or 15)
    if not spec.get("holderIdentity") or not renewed:
        return Finding(about, "wrong", "nobody leads now", advice)
    age = now - parse_time(renewed)
    if age > lasts:
        return Finding(about, "wrong", f"{spec['holderIdentity']} was last heard of {duration_text(age)} ago", advice)
    return Finding(about, "ok", f"led by {spec['holderIdentity']}")


def binding_findings(found: Sequence[BindingStatus], silent: Collection[str], now: datetime) -> Iterator[Finding]:
    """What bindings say of themselves, whether their clusters answer, and how long their tokens are good.

    The clusters of `silent` bindings gave no answer just now.
    """
    if not found:
        yield Finding("bindings", "warning", "no cluster has joined", "`tapestry join --help` says how")
    for each in found:
        about = f"binding {each.name}"
        for trouble in each.troubles:
            yield Finding(about, "wrong", trouble, f"`tapestry k describe clusterbinding {each.name}` has more")
        if each.name in silent or is_unreachable(each, now):
            ago = f"{duration_text(now - each.last_seen)} ago" if each.last_seen else "never, as far as anybody knows"
            what = "its cluster does not answer" if each.name in silent else "its syncer does not hear from its cluster"
            yield Finding(about, "wrong", f"{what}; it last answered {ago}", "is it up, and reachable from here?")
        elif not each.troubles:
            amounts = plural_text(each.nodes, "node"), plural_text(each.pods, "pod")
            yield Finding(about, "ok", ", ".join(filter(None, (each.phase or "Pending", each.leasing, *amounts))))
        yield from token_findings(about, each, now)


def is_unreachable(binding: BindingStatus, now: datetime) -> bool:
    limit = SILENCE_LIMIT if binding.last_seen_exact else UNREPORTED_LIMIT
    return binding.last_seen is not None and now - binding.last_seen > limit


def token_findings(about: str, binding: BindingStatus, now: datetime) -> Iterator[Finding]:
    ends = binding.credentials_expire
    if ends is None or ends - now > TOKEN_WARNING:
        return
    advice = f"`tapestry join` again for {binding.name}, or put a new kubeconfig into its Secret"
    if ends <= now:
        yield Finding(about, "wrong", f"its token expired at {timestamp(ends)}", advice)
    else:
        yield Finding(
            about, "warning", f"its token expires in {duration_text(ends - now)}, at {timestamp(ends)}", advice
        )


def node_findings(found: Sequence[NodeStatus]) -> Iterator[Finding]:
    down = sorted(each.name for each in found if not each.ready)
    if down:
        some = ", ".join(down[:3]) + (" ..." if len(down) > 3 else "")
        told = f"{len(down)} of {len(found)} virtual nodes are not ready: {some}"
        yield Finding("nodes", "warning", told, f"`tapestry explain node {down[0]}` says why")
    elif found:
        yield Finding("nodes", "ok", f"{len(found)} virtual nodes are ready")


def policy_findings(found: Sequence[PolicyStatus], unseen: Iterable[str]) -> Iterator[Finding]:
    """Policies that cannot be read as they are; those of owners that could not be seen are only told."""
    for sentence in unseen:
        yield Finding("policies", "warning", sentence, "whether it matters, the binding's conditions say")
    bad = [each for each in found if each.complaint]
    for each in bad:
        where = f" in the cluster of {each.seen_by}" if each.seen_by else ""
        advice = f"correct it; `tapestry explain policy {each.side}/{each.name}` says what it comes to"
        yield Finding(f"policy {each.name}{where}", "wrong", each.complaint, advice)
    if not bad:
        yield Finding("policies", "ok", f"{len(found)} found, all of which can be read")


def leftover_findings(secrets: Iterable[Object]) -> Iterator[Finding]:
    """What was left below by force, and is still to be removed there."""
    marked = [each for each in secrets if keys.LEFT_BEHIND in annotations_of(each)]
    if not marked:
        return
    from tapestry.manager.leftovers import leftovers_in  # noqa: PLC0415  slow to load, and few have such a mark

    for secret in marked:
        for left in leftovers_in(secret):
            advice = "the manager removes it once that cluster answers; if it never will, delete the Secret"
            yield Finding(f"Secret {key_of(secret)}", "warning", f"remembers {left}", advice)


def manager_finding(found: Object | None) -> Finding:
    """The manager's, where it runs in this cluster."""
    if found is None:
        told = "is not installed in this cluster"
        return Finding("manager", "warning", told, "unless it runs elsewhere: `tapestry manifests` has what it needs")
    available, wanted = value_at(found, "status", "availableReplicas", default=0), found["spec"].get("replicas", 1)
    if available:
        return Finding("manager", "ok", f"{available} of {wanted} replicas are available")
    look = f"`tapestry k logs -n {found['metadata']['namespace']} deployment/{name_of(found)}` says why"
    return Finding("manager", "wrong", f"none of {wanted} replicas is available", look)


def local_world_findings(folder: Path, *, is_running: bool, free: int, silent: Sequence[str]) -> Iterator[Finding]:
    """A world that `tapestry up` runs: its process, its clusters that do not answer, and room on its disk."""
    if is_running:
        yield Finding("world", "ok", f"runs from {folder}")
        for name in silent:
            log = folder / name / "log"
            yield Finding(
                f"world, {name}", "wrong", "does not answer", f"its log is {log}; `tapestry down`, then up again"
            )
    else:
        yield Finding("world", "warning", f"there is one in {folder}, and it is not running", "`tapestry up` runs it")
    level: Level = "wrong" if free < DISK_ERROR_BYTES else "warning" if free < DISK_WARNING_BYTES else "ok"
    told = f"{free / (1 << 30):.1f} GiB are free for {folder}"
    yield Finding("disk", level, told, "make room: without any, nothing can be written" if level != "ok" else "")


def findings_text(found: Sequence[Finding]) -> str:
    """A line for each, what to do below the table, and a last line that sums up."""
    text = table(["", "ABOUT", "FOUND"], [[LEVEL_LABELS[each.level], each.about, each.found] for each in found])
    advice = [f"{each.about}: {each.advice}" for each in found if each.advice]
    wrong, warnings = (sum(each.level == level for each in found) for level in ("wrong", "warning"))
    verdict = f"{wrong} wrong, {warnings} to look at" if wrong or warnings else "all is well"
    return "\n".join([text, *(["", "What to do:", *advice] if advice else []), "", verdict])

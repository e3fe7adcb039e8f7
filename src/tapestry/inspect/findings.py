"""Findings of `tapestry doctor`: correct, suspicious and wrong facts, with advice.

Each function checks one thing.  All functions are pure and report only on their arguments.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from tapestry.apis import keys
from tapestry.apis.clusterbindings import LAST_SEEN_INTERVAL
from tapestry.apis.mount_labels import enforced_level, safeguards_of, virtual_cluster_of
from tapestry.apis.release import install_command
from tapestry.inspect.status import BindingStatus, NodeStatus, PolicyStatus, Printable
from tapestry.inspect.tables import duration_text, plural_text, table
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, annotations_of, key_of, name_of, value_at
from tapestry.kube.times import parse_time, timestamp
from tapestry.manager.safeguards import NETWORK_POLICY, NO_NETWORK_POLICY, QUOTA, VOLUME_POLICIES

TOKEN_WARNING = timedelta(days=7)
SILENCE_LIMIT, UNREPORTED_LIMIT = timedelta(minutes=1), 2 * LAST_SEEN_INTERVAL
"""Longest time without a response of a cluster: if reported exactly, and otherwise."""
CLOCK_SKEW_WARNING, CLOCK_SKEW_ERROR = timedelta(seconds=2), timedelta(seconds=30)
DISK_WARNING_BYTES, DISK_ERROR_BYTES = 1 << 30, 100 << 20
"""Free bytes on a disk."""

Level = Literal["ok", "warning", "wrong"]
LEVEL_LABELS: dict[Level, str] = {"ok": "ok", "warning": "!", "wrong": "WRONG"}


class Finding(Printable, frozen=True):
    about: str
    level: Level
    found: str
    advice: str = ""
    """Advice; empty if nothing is wrong."""


def clock_findings(server_time: datetime | None, local_time: datetime) -> Iterator[Finding]:
    """Compare the server's clock, which has a resolution of one second, with ours."""
    if server_time is None:
        return
    difference = abs(server_time - local_time)
    level: Level = "wrong" if difference > CLOCK_SKEW_ERROR else "warning" if difference > CLOCK_SKEW_WARNING else "ok"
    text = f"the server's clock differs by {duration_text(difference)}"
    advice = "synchronize both clocks with NTP: windows, leases and tokens depend on them"
    yield Finding("clock", level, text if level != "ok" else "synchronized", advice if level != "ok" else "")


def leader_finding(about: str, lease: Object | None, now: datetime, advice: str) -> Finding:
    """Check that a Lease has a holder that renewed it in time."""
    if lease is None:
        return Finding(about, "wrong", "has never had a leader", advice)
    spec = lease.get("spec") or {}
    renewed, duration = spec.get("renewTime"), timedelta(seconds=spec.get("leaseDurationSeconds") or 15)
    if not spec.get("holderIdentity") or not renewed:
        return Finding(about, "wrong", "has no leader now", advice)
    age = now - parse_time(renewed)
    if age > duration:
        return Finding(
            about, "wrong", f"leader {spec['holderIdentity']} was last seen {duration_text(age)} ago", advice
        )
    return Finding(about, "ok", f"leader is {spec['holderIdentity']}")


def binding_findings(found: Sequence[BindingStatus], unreachable: Collection[str], now: datetime) -> Iterator[Finding]:
    """Check conditions, connectivity and token lifetime of bindings.

    The clusters of `unreachable` bindings did not answer just now.
    """
    if not found:
        yield Finding("bindings", "warning", "no cluster has joined", "`tapestry join --help` shows how")
    for each in found:
        about = f"binding {each.name}"
        for trouble in each.troubles:
            yield Finding(about, "wrong", trouble, f"`tapestry k describe clusterbinding {each.name}` shows details")
        if each.name in unreachable or is_unreachable(each, now):
            ago = f"{duration_text(now - each.last_seen)} ago" if each.last_seen else "never, as far as known"
            problem = "its cluster does not answer" if each.name in unreachable else "its syncer cannot reach it"
            yield Finding(about, "wrong", f"{problem}; it last answered {ago}", "check that it runs and is reachable")
        elif not each.troubles:
            amounts = plural_text(each.nodes, "node"), plural_text(each.pods, "pod")
            yield Finding(about, "ok", ", ".join(filter(None, (each.phase or "Pending", each.leasing, *amounts))))
        yield from token_findings(about, each, now)


def is_unreachable(binding: BindingStatus, now: datetime) -> bool:
    limit = SILENCE_LIMIT if binding.last_seen_exact else UNREPORTED_LIMIT
    return binding.last_seen is not None and now - binding.last_seen > limit


def token_findings(about: str, binding: BindingStatus, now: datetime) -> Iterator[Finding]:
    expiry = binding.credentials_expire
    if expiry is None or expiry - now > TOKEN_WARNING:
        return
    advice = f"run `tapestry join` again for {binding.name}, or put a new kubeconfig into its Secret"
    if expiry <= now:
        yield Finding(about, "wrong", f"its token expired at {timestamp(expiry)}", advice)
    else:
        yield Finding(
            about, "warning", f"its token expires in {duration_text(expiry - now)}, at {timestamp(expiry)}", advice
        )


def node_findings(found: Sequence[NodeStatus]) -> Iterator[Finding]:
    not_ready = sorted(each.name for each in found if not each.ready)
    if not_ready:
        examples = ", ".join(not_ready[:3]) + (" ..." if len(not_ready) > 3 else "")
        text = f"{len(not_ready)} of {len(found)} virtual nodes are not ready: {examples}"
        yield Finding("nodes", "warning", text, f"`tapestry explain node {not_ready[0]}` says why")
    elif found:
        yield Finding("nodes", "ok", f"{len(found)} virtual nodes are ready")


def policy_findings(found: Sequence[PolicyStatus], unread: Iterable[str]) -> Iterator[Finding]:
    """Report invalid policies, and owner policies that could not be read."""
    for sentence in unread:
        yield Finding("policies", "warning", sentence, "the conditions of the binding show whether this matters")
    invalid = [each for each in found if each.complaint]
    for each in invalid:
        where = f" in the cluster of {each.seen_by}" if each.seen_by else ""
        advice = f"correct it; `tapestry explain policy {each.side}/{each.name}` shows its effect"
        yield Finding(f"policy {each.name}{where}", "wrong", each.complaint, advice)
    if not invalid:
        yield Finding("policies", "ok", f"{len(found)} found, all valid")


def leftover_findings(secrets: Iterable[Object]) -> Iterator[Finding]:
    """Report objects that a forced unjoin left in physical clusters."""
    marked = [each for each in secrets if keys.LEFT_BEHIND in annotations_of(each)]
    if not marked:
        return
    from tapestry.manager.leftovers import leftovers_in  # noqa: PLC0415  slow to import, and rarely needed

    for secret in marked:
        for leftover in leftovers_in(secret):
            advice = "the manager deletes them when that cluster responds; if it is gone for good, delete the Secret"
            yield Finding(f"Secret {key_of(secret)}", "warning", f"records leftovers: {leftover}", advice)


def manager_finding(found: Object | None) -> Finding:
    """Check the manager's Deployment, if it runs in this cluster."""
    if found is None:
        text = "is not installed in this cluster"
        return Finding("manager", "warning", text, f"unless it runs elsewhere, install it: `{install_command()}`")
    available, replicas = value_at(found, "status", "availableReplicas", default=0), found["spec"].get("replicas", 1)
    if available:
        return Finding("manager", "ok", f"{available} of {replicas} replicas are available")
    advice = f"`tapestry k logs -n {found['metadata']['namespace']} deployment/{name_of(found)}` says why"
    return Finding("manager", "wrong", f"none of {replicas} replicas is available", advice)


def local_world_findings(folder: Path, *, is_running: bool, free: int, unreachable: Sequence[str]) -> Iterator[Finding]:
    """Check the process, the clusters and the disk space of a local world."""
    if is_running:
        yield Finding("world", "ok", f"runs from {folder}")
        for name in unreachable:
            log = folder / name / "log"
            yield Finding(
                f"world, {name}", "wrong", "does not answer", f"its log is {log}; restart: `tapestry down`, then up"
            )
    else:
        yield Finding("world", "warning", f"the world in {folder} is not running", "`tapestry up` starts it")
    level: Level = "wrong" if free < DISK_ERROR_BYTES else "warning" if free < DISK_WARNING_BYTES else "ok"
    text = f"{free / (1 << 30):.1f} GiB are free for {folder}"
    yield Finding("disk", level, text, "free disk space: without it, nothing can be written" if level != "ok" else "")


def findings_text(found: Sequence[Finding]) -> str:
    """Return a table of the findings, the advice, and a summary line."""
    text = table(["", "ABOUT", "FOUND"], [[LEVEL_LABELS[each.level], each.about, each.found] for each in found])
    advice = [f"{each.about}: {each.advice}" for each in found if each.advice]
    wrong, warnings = (sum(each.level == level for each in found) for level in ("wrong", "warning"))
    summary = f"{wrong} wrong, {warnings} warnings" if wrong or warnings else "no problems"
    return "\n".join([text, *(["", "Advice:", *advice] if advice else []), "", summary])


def safeguard_finding(binding: Object, namespace: Object | None) -> Finding:
    name, mount = name_of(binding), value_at(binding, "spec", "mountNamespace", default="")
    about = f"safeguards of {name}"
    if missing := list(missing_safeguards(binding, namespace)):
        advice = f"`tapestry join {name} --cluster-kubeconfig FILE` sets them up; running pods stay"
        return Finding(about, "warning", f"namespace {mount} lacks {', '.join(missing)}", advice)
    quota = "a quota" if QUOTA in safeguards_of(namespace) else "no quota"
    return Finding(about, "ok", f"namespace {mount} is marked, enforces {enforced_level(namespace)}, and has {quota}")


def missing_safeguards(binding: Object, namespace: Object | None) -> Iterator[str]:
    """Yield the parts that `tapestry join` would set up."""
    set_up = safeguards_of(namespace)
    if not virtual_cluster_of(namespace):
        yield "the mark of its virtual cluster"
    if enforced_level(namespace) is None:
        yield "a Pod Security level"
    if not set_up & {NETWORK_POLICY, NO_NETWORK_POLICY}:
        yield "a network policy"
    if not set_up:
        yield "a quota (only if you give --max-cpu, --max-memory or --max-pods)"
    if value_at(binding, "spec", "allowedVolumes", "drivers") and VOLUME_POLICIES not in set_up:
        yield "admission policies for volumes"
    permitted = find_condition(value_at(binding, "status", "conditions"), "Permitted") or {}
    if permitted.get("reason") == keys.PRIORITY_CLASS_MISSING:
        yield "the priority class"

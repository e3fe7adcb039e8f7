"""Text output of the commands: aligned tables and short sentences."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tapestry.apis.clusterbindings import LAST_SEEN_INTERVAL
from tapestry.inspect.explain import NodeExplanation, PolicyEffect, PolicyExplanation, ResourceExplanation
from tapestry.inspect.pods import BindingBranch, NodeBranch, PodExplanation, PodLeaf, PodStatus, Tree
from tapestry.inspect.proposals import NodePlan, PolicyPlan
from tapestry.inspect.status import BindingStatus, NodeStatus, PolicyStatus
from tapestry.kube.quantity import NANOS, parse_quantity
from tapestry.kube.times import timestamp

if TYPE_CHECKING:
    from tapestry.inspect.repair import RepairResult

EMPTY_CELL = "-"
GAP, NARROW_GAP = "   ", "  "
WIDTH = 80
"""Width of tables in characters, unless wide output is requested."""
MIN_CUT_WIDTH, MAX_WINDOW_LENGTH = 12, 24
"""Smallest width of a truncated text, and largest of a window."""
UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
MINUTE, HOUR, DAY = 60, 3600, 86400


def table(header: Sequence[str], rows: Iterable[Sequence[object]], gap: str = GAP) -> str:
    """Align columns; an empty cell becomes a dash, so that every line has the same number of words."""
    lines = [list(header), *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(gap.join(map(str.ljust, line, widths)).rstrip() for line in lines)


def fitted_table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    droppable: Sequence[str],
    truncated_column: str | None = None,
) -> str:
    """Return a table of at most 80 characters if possible; droppable columns are removed in order.

    The last column may be truncated.  Names never are, because they are copied to other commands.
    """
    columns = list(range(len(header)))
    cells = [[cell_text(cell) for cell in row] for row in rows]
    for name in droppable:
        if line_width(header, cells, columns, truncated_column) <= WIDTH:
            break
        columns.remove(header.index(name))
    available = (
        WIDTH
        - line_width(header, cells, [each for each in columns if header[each] != truncated_column])
        - len(NARROW_GAP)
    )
    lines = [
        [truncated(row[each], available) if header[each] == truncated_column else row[each] for each in columns]
        for row in cells
    ]
    return table([header[each] for each in columns], lines, NARROW_GAP)


def line_width(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int], truncated_column: str | None = None
) -> int:
    """Return the width of some columns of a table; a truncated column counts with its minimum."""
    widths = [max(len(header[each]), *(len(row[each]) for row in rows)) for each in columns]
    least = [
        min(width, MIN_CUT_WIDTH) if header[each] == truncated_column else width
        for each, width in zip(columns, widths, strict=True)
    ]
    return sum(least) + len(NARROW_GAP) * (len(columns) - 1)


def truncated(text: str, width: int) -> str:
    width = max(width, MIN_CUT_WIDTH)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def cell_text(cell: object) -> str:
    return EMPTY_CELL if cell in ("", None) else str(cell)


def duration_text(length: timedelta) -> str:
    """Format a duration with its two largest units: `3h12m`, `2d`, `45s`."""
    seconds = max(int(length.total_seconds()), 0)
    days, hours, minutes = seconds // DAY, seconds % DAY // HOUR, seconds % HOUR // MINUTE
    if days:
        return f"{days}d{hours}h" if hours and days < 10 else f"{days}d"
    if hours:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{minutes}m{seconds % MINUTE}s" if minutes else f"{seconds}s"


def age_text(moment: datetime | None, now: datetime) -> str:
    return duration_text(now - moment) if moment else ""


def time_text(moment: datetime | None, now: datetime) -> str:
    """Return `2026-03-01T22:00:00Z (in 3h12m)`, or `(... ago)` for the past."""
    if moment is None:
        return ""
    distance = f"in {duration_text(moment - now)}" if moment > now else f"{duration_text(now - moment)} ago"
    return f"{timestamp(moment)} ({distance})"


def amount_text(resource: str, text: str) -> str:
    """Format a quantity for readers: bytes in their largest unit, others unchanged."""
    if not text or not resource.startswith(("memory", "ephemeral-storage", "hugepages-")):
        return text
    number, rank = parse_quantity(text).nano / NANOS, 0
    while abs(number) >= 1024 and rank < len(UNITS) - 1:
        number, rank = number / 1024, rank + 1
    return f"{number:.1f}".removesuffix(".0") + UNITS[rank]


def resource_text(amounts: dict[str, str], resource: str) -> str:
    return amount_text(resource, amounts.get(resource, ""))


def usage_text(each: BindingStatus | NodeStatus, resource: str) -> str:
    """Return used and leased amounts: `1500m/4`, or `1500m/0` if pods remain on a closed node."""
    leased, used = resource_text(each.leased, resource), resource_text(each.used, resource)
    return f"{used or 0}/{leased or 0}" if leased or used else ""


def bindings_table(found: Sequence[BindingStatus], now: datetime, *, wide: bool = False) -> str:
    if not found:
        return "no cluster has joined; `tapestry join --help` shows how"
    header = ["NAME", "LEASING", "NODES", "PODS", "CPU", "MEMORY", "NEXT-CHANGE", "LAST-SEEN"]
    more = ["CLUSTER-ID", "PHASE", "AGE", "MOUNT-NAMESPACE", "CREDENTIALS-EXPIRE", "IDENTITY"] if wide else []
    rows = []
    for each in found:
        leasing = each.leasing if each.phase in ("", "Ready") and each.leasing else each.phase
        row: list[object] = [each.name, each.leasing if wide else leasing, each.nodes, each.pods]
        row += [usage_text(each, resource) for resource in ("cpu", "memory")]
        row += [f"in {duration_text(each.next_change - now)}" if each.next_change else "", last_seen_text(each, now)]
        if wide:
            row += [each.cluster_id, each.phase, age_text(each.created, now), each.mount_namespace]
            row += [time_text(each.credentials_expire, now), each.identity]
        rows.append(row)
    troubles = [f"{each.name}: {trouble}" for each in found for trouble in each.troubles]
    text = fitted_table([*header, *more], rows, () if wide else ("PODS", "NODES", "MEMORY"))
    return "\n".join([text, *(["", *troubles] if troubles else [])])


def last_seen_text(binding: BindingStatus, now: datetime) -> str:
    """Return when its cluster last answered; a recent but inexact time is shown as an upper bound."""
    if binding.last_seen is None:
        return ""
    age, bound = now - binding.last_seen, LAST_SEEN_INTERVAL + timedelta(minutes=1)
    is_recent = not binding.last_seen_exact and age < bound
    return f"<{bound // timedelta(minutes=1)}m ago" if is_recent else f"{duration_text(age)} ago"


def nodes_table(found: Sequence[NodeStatus], now: datetime, *, wide: bool = False) -> str:
    if not found:
        return "no node is lent; `tapestry status` shows why"
    header = ["NAME", "STATE", "READY", "PODS", "CPU", "MEMORY", "ENDS"]
    more = ["BINDING", "AGE", "PHYSICAL-NODE", "POLICIES", "OTHER"] if wide else []
    rows = []
    for each in found:
        ready = ("True" if each.ready else "False") + (",Cordoned" if each.cordoned else "")
        row: list[object] = [each.name, each.state, ready, each.pods]
        row += [usage_text(each, resource) for resource in ("cpu", "memory")]
        row += [f"in {duration_text(each.lease_ends - now)}" if each.lease_ends else ""]
        if wide:
            others = (f"{name}={text}" for name, text in each.leased.items() if name not in ("cpu", "memory"))
            row += [
                each.binding,
                age_text(each.created, now),
                each.physical_node,
                ",".join(each.policies),
                ",".join(others),
            ]
        rows.append(row)
    return fitted_table([*header, *more], rows, () if wide else ("ENDS", "PODS", "MEMORY", "CPU"))


def policies_table(found: Sequence[PolicyStatus], now: datetime, *, wide: bool = False) -> str:
    if not found:
        return "there is no policy, so nothing is lent"
    header = ["POLICY", "CLUSTER", "STATE", "NEXT-CHANGE", "NODES", "CPU", "MEMORY", *(() if wide else ["WINDOWS"])]
    more = ["WINDOWS", "AGE", "LIMITS", "TERMS"] if wide else []
    rows = []
    for each in found:
        row: list[object] = [f"{each.side}/{each.name}", each.cluster, each.state]
        row += [f"in {duration_text(each.next_change - now)}" if each.next_change else "", each.nodes]
        row += [resource_text(each.leased, "cpu"), resource_text(each.leased, "memory")]
        limits = "; ".join(f"{name}: {text}" for name, text in each.limits.items())
        row += (
            [windows_text(each), age_text(each.created, now), limits or "none", each.terms]
            if wide
            else [window_count_text(each)]
        )
        rows.append(row)
    complaints = [f"{each.side}/{each.name}: {each.complaint}" for each in found if each.complaint]
    text = fitted_table([*header, *more], rows, () if wide else ("WINDOWS", "NODES", "MEMORY", "CPU"))
    return "\n".join([text, *(["", *complaints] if complaints else [])])


def window_count_text(policy: PolicyStatus) -> str:
    """Return the only window, or the number of windows."""
    if len(policy.windows) > 1 or len(windows_text(policy)) > MAX_WINDOW_LENGTH:
        return plural_text(len(policy.windows), "window")
    return windows_text(policy)


def windows_text(policy: PolicyStatus | PolicyEffect) -> str:
    """Return the windows; empty for an invalid policy."""
    return "; ".join(policy.windows) or ("" if policy.complaint else "always")


def pods_table(found: Sequence[PodStatus], now: datetime, *, wide: bool = False) -> str:
    if not found:
        return "no pod is on a virtual node or waits for one"
    header = ["NAMESPACE", "POD", "PHASE", "NODE"]
    more = ["BINDING", "TWIN", "PHYSICAL-NODE", "AGE"] if wide else []
    rows = []
    for each in found:
        row: list[object] = [each.namespace, each.name, each.phase, each.node]
        row += [each.binding, each.twin, each.physical_node, age_text(each.created, now)] if wide else []
        rows.append([*row, reason_text(each.reason, each.why)])
    if wide:
        return table([*header, *more, "WHY"], rows)
    # With a single namespace, it is the one that the user selected.
    same = len({each.namespace for each in found}) == 1
    return fitted_table([*header, "WHY"], rows, (*(("NAMESPACE",) if same else ()), "NODE"), truncated_column="WHY")


def reason_text(reason: str, why: str) -> str:
    return " ".join(f"{reason}: {why}".split()).strip(": ")


def repairs_table(found: "Sequence[RepairResult]", *, wide: bool = False) -> str:
    if not found:
        return "no inconsistencies were found"
    header = ["BINDING", "INVARIANT", "SIDE", "OBJECT", "FIXED", "WHAT-IS-WRONG"]
    rows = []
    for each in found:
        row = [each.binding, each.invariant, each.side, f"{each.resource} {each.key}", "yes" if each.fixed else "no"]
        rows.append([*row, each.message, each.remedy] if wide else [*row, each.message])
    if wide:
        return table([*header, "REMEDY"], rows)
    remedies = dict.fromkeys(f"{each.binding}: fixed by {each.remedy}" for each in found if each.remedy)
    return "\n".join([table(header, rows), *(["", *remedies] if remedies else [])])


# -- the tree


def tree_text(tree: Tree) -> str:
    lines = [f"virtual cluster {tree.virtual_cluster}"]
    if not tree.bindings:
        return "\n".join([*lines, "no cluster has joined; `tapestry join --help` shows how"])
    return "\n".join([*lines, *tree_lines([(binding_line(each), binding_node_lines(each)) for each in tree.bindings])])


def binding_node_lines(binding: BindingBranch) -> list[str]:
    return list(
        tree_lines(
            [(node_line(each), tree_lines([(pod_line(pod), ()) for pod in each.pods])) for each in binding.nodes]
        )
    )


def tree_lines(branches: Sequence[tuple[str, Iterable[str]]]) -> Iterator[str]:
    for number, (line, children) in enumerate(branches, start=1):
        is_last = number == len(branches)
        yield f"{'└─' if is_last else '├─'} {line}"
        yield from (f"{'   ' if is_last else '│  '}{each}" for each in children)


def binding_line(branch: BindingBranch) -> str:
    pods = sum(len(node.pods) for node in branch.nodes)
    state = ", ".join(filter(None, (branch.phase, branch.leasing)))
    amounts = f"{plural_text(len(branch.nodes), 'node')}, {plural_text(pods, 'pod')}"
    return f"{branch.binding} ({branch.cluster_id}): {state or EMPTY_CELL}; {amounts}"


def plural_text(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def node_line(branch: NodeBranch) -> str:
    return f"{branch.node} -> {branch.physical_node}: {branch.state}"


def pod_line(leaf: PodLeaf) -> str:
    twin = f" -> {leaf.twin}" if leaf.twin else ""
    return f"{leaf.pod}{twin}: {leaf.phase}{f', {leaf.reason}' if leaf.reason else ''}"


# -- explanations


def node_text(explanation: NodeExplanation, now: datetime) -> str:
    title = explanation.node or f"{explanation.physical_node} (no virtual node)"
    lines = [
        f"Node {title}: {explanation.state} ({explanation.reason})",
        *(f"  {line}" for line in node_lines(explanation, now)),
    ]
    if explanation.resources:
        lines += ["", resources_table(explanation.resources, seen=not explanation.unseen)]
    if explanation.policies:
        lines += ["", node_policies_table(explanation.policies, now)]
    return "\n".join(lines)


def node_lines(explanation: NodeExplanation, now: datetime) -> Iterator[str]:
    yield explanation.why
    yield f"physical node {explanation.physical_node} of ClusterBinding {explanation.binding}"
    if explanation.ends:
        yield f"closes at {time_text(explanation.ends, now)}; then {reclaim_text(explanation, now)}"
    elif explanation.state != "Open" and explanation.resources and not explanation.unseen:
        yield reclaim_text(explanation, now)
    elif explanation.state == "Open" and not explanation.unseen:
        yield "no end is scheduled"
    if explanation.next_change and explanation.next_change != explanation.ends:
        yield f"next change at {time_text(explanation.next_change, now)}"
    if explanation.behind:
        yield f"the virtual node still shows other amounts of {', '.join(explanation.behind)}; is its syncer running?"
    if explanation.last_seen:
        yield f"it last answered at {time_text(explanation.last_seen, now)}"
    if explanation.unseen:
        yield f"the physical cluster was not read: {explanation.unseen}"


def reclaim_text(explanation: NodeExplanation, now: datetime) -> str:
    """Describe the fate of pods on a node that closes."""
    by = f", by {explanation.terms_by}" if explanation.terms_by else ""
    if explanation.deadline is None:
        return f"running pods may finish{by}"
    if explanation.deadline <= now:
        return f"remaining pods are being reclaimed{by}"
    return f"remaining pods are reclaimed at {time_text(explanation.deadline, now)}{by}"


def resources_table(found: Iterable[ResourceExplanation], *, seen: bool) -> str:
    if not seen:
        rows = [
            [each.resource, amount_text(each.resource, each.leased), amount_text(each.resource, each.used)]
            for each in found
        ]
        return table(["RESOURCE", "LEASED", "USED"], rows)
    rows = []
    for each in found:
        parts = (each.allocatable, each.foreign, each.idle, each.leased, each.used)
        floored = f"; {each.floored} floored" if each.floored else ""
        decided = f"{each.decided_by}: {each.rule}{floored}" if each.rule else each.decided_by + floored
        rows.append([each.resource, *(amount_text(each.resource, part) for part in parts), decided])
    return table(["RESOURCE", "ALLOCATABLE", "FOREIGN", "IDLE", "LEASED", "USED", "DECIDED-BY"], rows)


def node_policies_table(found: Iterable[PolicyEffect], now: datetime) -> str:
    rows = []
    for each in found:
        state = "Open" if each.open else "Closed"
        role = (
            "" if each.selects is None else "decides" if each.decides else "counts" if each.selects else "other nodes"
        )
        change = f"{'closes' if each.open else 'opens'} {time_text(each.next_change, now)}" if each.next_change else ""
        state_text = f"Invalid: {each.complaint}" if each.complaint else state
        rows.append([each.policy, state_text, role, change, windows_text(each), each.terms])
    return table(["POLICY", "STATE", "ROLE", "NEXT-CHANGE", "WINDOWS", "TERMS"], rows)


def policy_text(explanation: PolicyExplanation, now: datetime) -> str:
    state = "Open" if explanation.open else "Closed"
    since = f" since {time_text(explanation.since, now)}" if explanation.since else ""
    lines = [f"Policy {explanation.policy}: {state}{since}"]
    if explanation.complaint:
        effect = "its last good spec stays in effect" if explanation.uses_last_good else "it has no effect"
        lines.append(f"  invalid: {explanation.complaint}; {effect}")
    lines.append(
        f"  for ClusterBinding {explanation.binding}"
        if explanation.binding
        else f"  for no binding: no ClusterBinding has the name or clusterID {explanation.cluster}"
    )
    if not explanation.complaint or explanation.uses_last_good:
        lines += policy_lines(explanation, now)
    others = f"; {plural_text(explanation.others, 'node')} under it closed" if explanation.others else ""
    if not explanation.nodes:
        return "\n".join([*lines, f"  lends nothing now{others}"])
    lines.append(f"  lends {plural_text(len(explanation.nodes), 'node')} now{others}")
    rows = [
        [each.node, each.state, resource_text(each.leased, "cpu"), resource_text(each.leased, "memory")]
        for each in explanation.nodes
    ]
    rows.append(["all", "", resource_text(explanation.leased, "cpu"), resource_text(explanation.leased, "memory")])
    return "\n".join([*lines, "", table(["NODE", "STATE", "LEASED-CPU", "LEASED-MEMORY"], rows)])


def policy_lines(explanation: PolicyExplanation, now: datetime) -> Iterator[str]:
    """Yield the windows, limits and reclaim terms of a valid policy."""
    verb = "closes" if explanation.open else "opens"
    yield (
        f"  {verb} at {time_text(explanation.next_change, now)}"
        if explanation.next_change
        else "  has no scheduled change"
    )
    yield f"  windows: {'; '.join(explanation.windows) or 'always'}"
    limits = "; ".join(f"{name}: {text}" for name, text in explanation.limits.items())
    yield f"  of each node: {limits or 'all that is idle'}; other resources are leased completely"
    yield f"  at the end: {explanation.terms}"


def plan_text(plan: PolicyPlan, now: datetime) -> str:
    """Describe the changes that a proposed policy would cause."""
    state = "open" if plan.open else "closed"
    lines = [f"Policy {plan.policy} for ClusterBinding {plan.binding}: {'new' if plan.is_new else 'changed'}"]
    change = f", {'closes' if plan.open else 'opens'} at {time_text(plan.next_change, now)}" if plan.next_change else ""
    lines.append(f"  would be {state} now{change}")
    lines.append(f"  windows: {'; '.join(plan.windows) or 'always'}")
    lines.append(f"  at the end: {plan.terms}")
    if not plan.nodes:
        return "\n".join([*lines, "  no node would be lent"])
    rows = [
        [
            each.node,
            change_text(each.state_now, each.state_then),
            *(
                change_text(resource_text(each.leased_now, name) or "0", resource_text(each.leased_then, name) or "0")
                for name in ("cpu", "memory")
            ),
            reclaimed_pods_text(each, now),
        ]
        for each in plan.nodes
    ]
    totals = (
        change_text(resource_text(plan.leased_now, name) or "0", resource_text(plan.leased_then, name) or "0")
        for name in ("cpu", "memory")
    )
    rows.append(["all", "", *totals, str(sum(len(each.reclaimed) for each in plan.nodes))])
    lines += ["", fitted_table(["NODE", "STATE", "CPU", "MEMORY", "PODS-RECLAIMED"], rows, ())]
    pods = [f"  {pod} on {each.node}" for each in plan.nodes for pod in each.reclaimed]
    return "\n".join([*lines, *(["", "Pods that would be reclaimed:", *pods] if pods else [])])


def change_text(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def reclaimed_pods_text(node: NodePlan, now: datetime) -> str:
    if not node.reclaimed:
        return "0"
    assert node.deadline is not None
    when = f"in {duration_text(node.deadline - now)}" if node.deadline > now else "now"
    return f"{len(node.reclaimed)} {when}"


def pod_text(explanation: PodExplanation, now: datetime) -> str:
    pod = explanation.pod
    lines = [f"Pod {pod.namespace}/{pod.name}: {pod.state}{f' ({pod.reason})' if pod.reason else ''}"]
    lines += [f"  {line}" for line in pod_lines(explanation, now)]
    if explanation.obstacles:
        rows = [[each.what, f"{each.nodes} of {explanation.nodes}", each.todo] for each in explanation.obstacles]
        lines += ["", table(["OBSTACLE", "NODES", "ADVICE"], rows)]
    return "\n".join(lines)


def pod_lines(explanation: PodExplanation, now: datetime) -> Iterator[str]:
    pod = explanation.pod
    if pod.why:
        yield pod.why
    if explanation.deadline:
        yield f"if this persists it fails at {time_text(explanation.deadline, now)}, with the default syncer settings"
    if explanation.free_nodes:
        free = f"{explanation.free_nodes} of {explanation.nodes} virtual nodes"
        yield f"taints, labels and free resources admit it to {free}: its scheduler has not chosen one yet"
    if pod.binding:
        yield f"node {pod.node}, which is {pod.physical_node} of ClusterBinding {pod.binding}"
    if pod.twin:
        placed = f" on {explanation.twin_node}" if explanation.twin_node else ""
        yield f"twin {pod.twin}{f': {explanation.twin_phase}{placed}' if explanation.twin_phase else ''}"
    yield from explanation.notes
    if explanation.todo and not explanation.obstacles:
        yield f"advice: {explanation.todo}"
    if explanation.unseen:
        yield f"the physical cluster was not read: {explanation.unseen}"

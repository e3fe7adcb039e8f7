"""A scene as a screen of a terminal, of any size: clusters and what they lend, nodes, pods and why they wait.  Pure.

What does not fit is counted.  Lines to be copied are never cut: one that is too long goes on after a backslash, which a
shell takes for one line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tapestry.inspect.pods import PodStatus
from tapestry.inspect.status import BindingStatus, NodeStatus
from tapestry.inspect.tables import EMPTY_CELL, age_text, duration_text, plural_text, reason_text
from tapestry.inspect.tables import usage_text as use_text
from tapestry.inspect.world_state import WorldState

STYLES = {
    **dict.fromkeys(("Leasing", "Open", "Running", "Ready", "Succeeded"), "green"),
    **dict.fromkeys(("OutOfTimeWindows", "Closed", "Pending", "Terminating", "NotReady"), "yellow"),
    **dict.fromkeys(("Withdrawn", "Failed"), "red"),
}
STOP_HINT = "Ctrl-C stops everything; the next `tapestry up` finds it as it was."
CLOSED_REASON = "OutOfTimeWindows"
PADDING = 2
"""Columns of a terminal between those of a list."""
MIN_LIST_ROWS = 3
"""Rows that a list gets, however small the terminal is."""


@dataclass(frozen=True)
class Footer:
    """What somebody in front of the screen can do, and what they have missed."""

    lines: Sequence[str]
    """To copy to another terminal."""
    notes: Sequence[str] = ()
    """What happened lately, the last of it last."""


def screen(state: WorldState, prompt: Footer, width: int, height: int) -> RenderableType:
    """The scene in so many columns and rows."""
    lines = [Text(part, "bold", no_wrap=True) for line in prompt.lines for part in wrapped_lines(line, width)]
    foot: list[RenderableType] = [
        Rule("in another terminal", style="dim", align="left"),
        *lines,
        Rule(style="dim"),
        *(Text(f"! {each}", "yellow", no_wrap=True, overflow="ellipsis") for each in prompt.notes[-MIN_LIST_ROWS:]),
        Text(STOP_HINT, "dim", no_wrap=True, overflow="ellipsis"),
    ]
    troubles = [f"{each.name}: {trouble}" for each in state.bindings for trouble in each.troubles]
    room = height - len(foot) - 6  # a title, and above each list a gap and its header
    shares = row_shares(room, [len(state.bindings) + len(troubles), len(state.waiting), len(state.nodes)])
    return Group(
        title_line(state),
        clusters_panel(state, troubles, shares[0], width),
        Text(),
        pods_panel(state, shares[1]),
        Text(),
        nodes_panel(state, shares[2], width),
        *foot,
    )


def row_shares(max_rows: int, requested: Sequence[int]) -> list[int]:
    """Rows for each list: the first are served first, but each has a few if it wants them."""
    found = [min(each, MIN_LIST_ROWS) for each in requested]
    rest = max_rows - sum(found)
    for number, each in enumerate(requested):
        more = max(min(each - found[number], rest), 0)
        found[number], rest = found[number] + more, rest - more
    return found


def wrapped_lines(line: str, width: int) -> Iterator[str]:
    """A line in pieces that fit, which a shell puts together again."""
    while len(line) > width:
        yield f"{line[: width - 1]}\\"
        line = line[width - 1 :]
    yield line


def title_line(state: WorldState) -> RenderableType:
    ready = sum(each.ready for each in state.nodes)
    told = f"{plural_text(len(state.bindings), 'cluster')} and {ready} of {plural_text(len(state.nodes), 'node')} ready"
    return Text.assemble(("Tapestry", "bold"), f"  {told}  ", (f"{state.now:%H:%M}", "dim"), no_wrap=True)


# -- lists


def grid_table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], droppable: Sequence[str], width: int
) -> Table:
    """Rows with every column that there is room for: where some do not fit, the first droppable ones go first."""
    needs = {name: max([len(name), *(len(row[index]) for row in rows)]) + PADDING for index, name in enumerate(columns)}
    for name in droppable:
        if sum(needs.values()) - PADDING <= width:
            break
        del needs[name]
    table = Table(box=None, padding=(0, PADDING, 0, 0), header_style="dim", expand=False)
    for name in needs:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name in needs))
    return table


def clusters_panel(state: WorldState, troubles: Sequence[str], max_rows: int, width: int) -> RenderableType:
    if not state.bindings:
        return Text("no cluster has joined", "yellow")
    shown = state.bindings[: visible_count(len(state.bindings), max_rows)]
    rows: list[list[str | Text]] = []
    for each in shown:
        amounts = [usage_cell(each, "cpu"), usage_cell(each, "memory")]
        leasing = styled_text(each.leasing or each.phase)
        rows.append([each.name, leasing, str(each.nodes), str(each.pods), *amounts, next_change_cell(each, state.now)])
    columns = ["CLUSTER", "LEASING", "NODES", "PODS", "CPU", "MEMORY", "NEXT CHANGE"]
    table = grid_table(columns, rows, ("MEMORY", "PODS", "CPU"), width)
    said = [
        Text(f"  {each}", "yellow", no_wrap=True, overflow="ellipsis") for each in troubles[: max_rows - len(shown)]
    ]
    return Group(table, *said, *overflow_lines(len(state.bindings) - len(shown), "cluster"))


def nodes_panel(scene: WorldState, max_rows: int, width: int) -> RenderableType:
    remarkable = sorted(scene.nodes, key=lambda each: (each.ready and each.state == "Open", each.name))
    shown = remarkable[: visible_count(len(remarkable), max_rows)]
    rows: list[list[str | Text]] = []
    for each in shown:
        ends = local_time_text(each.lease_ends, scene.now) if each.lease_ends else EMPTY_CELL
        state = styled_text(each.state if each.ready else "NotReady")
        rows.append([each.name, state, str(each.pods), usage_cell(each, "cpu"), usage_cell(each, "memory"), ends])
    columns = ["NODE", "STATE", "PODS", "CPU", "MEMORY", "LEASE ENDS"]
    table = grid_table(columns, rows, ("LEASE ENDS", "MEMORY", "CPU"), width)
    return Group(table, *overflow_lines(len(scene.nodes) - len(shown), "node"))


def pods_panel(state: WorldState, max_rows: int) -> RenderableType:
    phases = sorted(state.phases.items())
    parts = [Text.assemble(f"{count} ", styled_text(phase)) for phase, count in phases if count]
    head = Text.assemble(("PODS  ", "dim"), Text(", ").join(parts) if parts else "none yet")
    shown = state.waiting[: visible_count(len(state.waiting), max_rows)]
    return Group(
        head,
        *(waiting_pod_line(each, state.now) for each in shown),
        *overflow_lines(len(state.waiting) - len(shown), "pod"),
    )


def waiting_pod_line(pod: PodStatus, now: datetime) -> Text:
    why = reason_text(pod.reason, pod.why)
    text = f"  {pod.namespace}/{pod.name} waits for {age_text(pod.created, now)}: {why}"
    return Text(text, no_wrap=True, overflow="ellipsis")


def visible_count(count: int, max_rows: int) -> int:
    """How many of them are shown: where they do not all fit, a line tells of the others."""
    return count if count <= max_rows else max(max_rows - 1, 0)


def overflow_lines(count: int, noun: str) -> list[Text]:
    return [Text(f"  and {plural_text(count, noun)} more", "dim")] if count else []


# -- cells


def styled_text(word: str) -> Text:
    return Text(word, STYLES.get(word, ""))


def usage_cell(each: BindingStatus | NodeStatus, resource: str) -> str:
    """What is used of what is leased."""
    return use_text(each, resource) or EMPTY_CELL


def next_change_cell(binding: BindingStatus, now: datetime) -> str:
    if binding.next_change is None:
        return EMPTY_CELL
    return f"{'opens' if binding.leasing == CLOSED_REASON else 'changes'} {local_time_text(binding.next_change, now)}"


def local_time_text(moment: datetime, now: datetime) -> str:
    """A moment as people say it: `22:00 (in 3h12m)`, `tomorrow 06:00 (in 9h)`, `Mon 06:00 (in 3d2h)`."""
    there = moment.astimezone(now.tzinfo)
    days = (there.date() - now.date()).days
    day = {0: "", 1: "tomorrow "}.get(days, f"{there:%a} " if 0 < days < 7 else f"{there:%d %b} ")
    return f"{day}{there:%H:%M} ({f'in {duration_text(moment - now)}' if moment > now else 'now'})"

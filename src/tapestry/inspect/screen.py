"""Live view of a world as a terminal screen of any size: clusters, nodes and waiting pods. Pure.

Rows that do not fit are counted.  Commands to copy are never cut: a long one continues after a backslash, as in a
shell.
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
STOP_HINT = "Ctrl-C stops everything; the next `tapestry up` continues with the same data."
CLOSED_REASON = "OutOfTimeWindows"
PADDING = 2
"""Spaces between columns."""
MIN_LIST_ROWS = 3
"""Smallest number of rows per list, even on a small terminal."""


@dataclass(frozen=True)
class Footer:
    """Commands to copy and recent events, at the bottom of the screen."""

    lines: Sequence[str]
    """Commands to copy to another terminal."""
    notes: Sequence[str] = ()
    """Recent events, the newest last."""


def screen(state: WorldState, prompt: Footer, width: int, height: int) -> RenderableType:
    """Render the state with the given number of columns and rows."""
    lines = [Text(part, "bold", no_wrap=True) for line in prompt.lines for part in wrapped_lines(line, width)]
    footer: list[RenderableType] = [
        Rule("in another terminal", style="dim", align="left"),
        *lines,
        Rule(style="dim"),
        *(Text(f"! {each}", "yellow", no_wrap=True, overflow="ellipsis") for each in prompt.notes[-MIN_LIST_ROWS:]),
        Text(STOP_HINT, "dim", no_wrap=True, overflow="ellipsis"),
    ]
    troubles = [f"{each.name}: {trouble}" for each in state.bindings for trouble in each.troubles]
    max_rows = height - len(footer) - 6  # the title, and a blank line and a header per list
    shares = row_shares(max_rows, [len(state.bindings) + len(troubles), len(state.waiting), len(state.nodes)])
    return Group(
        title_line(state),
        clusters_panel(state, troubles, shares[0], width),
        Text(),
        pods_panel(state, shares[1]),
        Text(),
        nodes_panel(state, shares[2], width),
        *footer,
    )


def row_shares(max_rows: int, requested: Sequence[int]) -> list[int]:
    """Distribute rows: each list gets a minimum, then the first lists get the rest."""
    found = [min(each, MIN_LIST_ROWS) for each in requested]
    rest = max_rows - sum(found)
    for number, each in enumerate(requested):
        more = max(min(each - found[number], rest), 0)
        found[number], rest = found[number] + more, rest - more
    return found


def wrapped_lines(line: str, width: int) -> Iterator[str]:
    """Split a command into lines that a shell joins again."""
    while len(line) > width:
        yield f"{line[: width - 1]}\\"
        line = line[width - 1 :]
    yield line


def title_line(state: WorldState) -> RenderableType:
    ready = sum(each.ready for each in state.nodes)
    text = f"{plural_text(len(state.bindings), 'cluster')} and {ready} of {plural_text(len(state.nodes), 'node')} ready"
    return Text.assemble(("Tapestry", "bold"), f"  {text}  ", (f"{state.now:%H:%M}", "dim"), no_wrap=True)


# -- lists


def grid_table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], droppable: Sequence[str], width: int
) -> Table:
    """Return a table of the columns that fit; droppable columns are removed in order."""
    widths = {
        name: max([len(name), *(len(row[index]) for row in rows)]) + PADDING for index, name in enumerate(columns)
    }
    for name in droppable:
        if sum(widths.values()) - PADDING <= width:
            break
        del widths[name]
    table = Table(box=None, padding=(0, PADDING, 0, 0), header_style="dim", expand=False)
    for name in widths:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name in widths))
    return table


def clusters_panel(state: WorldState, troubles: Sequence[str], max_rows: int, width: int) -> RenderableType:
    if not state.bindings:
        return Text("no cluster has joined", "yellow")
    visible = state.bindings[: visible_count(len(state.bindings), max_rows)]
    rows: list[list[str | Text]] = []
    for each in visible:
        amounts = [usage_cell(each, "cpu"), usage_cell(each, "memory")]
        leasing = styled_text(each.leasing or each.phase)
        rows.append([each.name, leasing, str(each.nodes), str(each.pods), *amounts, next_change_cell(each, state.now)])
    columns = ["CLUSTER", "LEASING", "NODES", "PODS", "CPU", "MEMORY", "NEXT CHANGE"]
    table = grid_table(columns, rows, ("MEMORY", "PODS", "CPU"), width)
    problem_lines = [
        Text(f"  {each}", "yellow", no_wrap=True, overflow="ellipsis") for each in troubles[: max_rows - len(visible)]
    ]
    return Group(table, *problem_lines, *overflow_lines(len(state.bindings) - len(visible), "cluster"))


def nodes_panel(world: WorldState, max_rows: int, width: int) -> RenderableType:
    ordered = sorted(world.nodes, key=lambda each: (each.ready and each.state == "Open", each.name))
    visible = ordered[: visible_count(len(ordered), max_rows)]
    rows: list[list[str | Text]] = []
    for each in visible:
        ends = local_time_text(each.lease_ends, world.now) if each.lease_ends else EMPTY_CELL
        state = styled_text(each.state if each.ready else "NotReady")
        rows.append([each.name, state, str(each.pods), usage_cell(each, "cpu"), usage_cell(each, "memory"), ends])
    columns = ["NODE", "STATE", "PODS", "CPU", "MEMORY", "LEASE ENDS"]
    table = grid_table(columns, rows, ("LEASE ENDS", "MEMORY", "CPU"), width)
    return Group(table, *overflow_lines(len(world.nodes) - len(visible), "node"))


def pods_panel(state: WorldState, max_rows: int) -> RenderableType:
    phases = sorted(state.phases.items())
    parts = [Text.assemble(f"{count} ", styled_text(phase)) for phase, count in phases if count]
    head = Text.assemble(("PODS  ", "dim"), Text(", ").join(parts) if parts else "none yet")
    visible = state.waiting[: visible_count(len(state.waiting), max_rows)]
    return Group(
        head,
        *(waiting_pod_line(each, state.now) for each in visible),
        *overflow_lines(len(state.waiting) - len(visible), "pod"),
    )


def waiting_pod_line(pod: PodStatus, now: datetime) -> Text:
    why = reason_text(pod.reason, pod.why)
    text = f"  {pod.namespace}/{pod.name} waits for {age_text(pod.created, now)}: {why}"
    return Text(text, no_wrap=True, overflow="ellipsis")


def visible_count(count: int, max_rows: int) -> int:
    """Return the number of visible rows; the last row is reserved for a count of the hidden ones."""
    return count if count <= max_rows else max(max_rows - 1, 0)


def overflow_lines(count: int, noun: str) -> list[Text]:
    return [Text(f"  and {plural_text(count, noun)} more", "dim")] if count else []


# -- cells


def styled_text(word: str) -> Text:
    return Text(word, STYLES.get(word, ""))


def usage_cell(each: BindingStatus | NodeStatus, resource: str) -> str:
    """Return the used and leased amounts of a resource."""
    return use_text(each, resource) or EMPTY_CELL


def next_change_cell(binding: BindingStatus, now: datetime) -> str:
    if binding.next_change is None:
        return EMPTY_CELL
    return f"{'opens' if binding.leasing == CLOSED_REASON else 'changes'} {local_time_text(binding.next_change, now)}"


def local_time_text(moment: datetime, now: datetime) -> str:
    """Format a time relative to now: `22:00 (in 3h12m)`, `tomorrow 06:00 (in 9h)`, `Mon 06:00 (in 3d2h)`."""
    local = moment.astimezone(now.tzinfo)
    days = (local.date() - now.date()).days
    day = {0: "", 1: "tomorrow "}.get(days, f"{local:%a} " if 0 < days < 7 else f"{local:%d %b} ")
    return f"{day}{local:%H:%M} ({f'in {duration_text(moment - now)}' if moment > now else 'now'})"

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
from tapestry.inspect.scene import Scene
from tapestry.inspect.status import BindingStatus, NodeStatus
from tapestry.inspect.tables import NONE, ago, counted, reason_text, span
from tapestry.inspect.tables import use as use_text

STYLES = {
    **dict.fromkeys(("Leasing", "Open", "Running", "Ready", "Succeeded"), "green"),
    **dict.fromkeys(("OutOfTimeWindows", "Closed", "Pending", "Terminating", "NotReady"), "yellow"),
    **dict.fromkeys(("Withdrawn", "Failed"), "red"),
}
ENDING = "Ctrl-C stops everything; the next `tapestry up` finds it as it was."
CLOSED = "OutOfTimeWindows"
PADDING = 2
"""Columns of a terminal between those of a list."""
LEAST = 3
"""Rows that a list gets, however small the terminal is."""


@dataclass(frozen=True)
class Prompt:
    """What somebody in front of the screen can do, and what they have missed."""

    lines: Sequence[str]
    """To copy to another terminal."""
    notes: Sequence[str] = ()
    """What happened lately, the last of it last."""


def screen(scene: Scene, prompt: Prompt, width: int, height: int) -> RenderableType:
    """The scene in so many columns and rows."""
    lines = [Text(part, "bold", no_wrap=True) for line in prompt.lines for part in folded(line, width)]
    foot: list[RenderableType] = [
        Rule("in another terminal", style="dim", align="left"),
        *lines,
        Rule(style="dim"),
        *(Text(f"! {each}", "yellow", no_wrap=True, overflow="ellipsis") for each in prompt.notes[-LEAST:]),
        Text(ENDING, "dim", no_wrap=True, overflow="ellipsis"),
    ]
    troubles = [f"{each.name}: {trouble}" for each in scene.bindings for trouble in each.troubles]
    room = height - len(foot) - 6  # a title, and above each list a gap and its header
    shares = shared(room, [len(scene.bindings) + len(troubles), len(scene.waiting), len(scene.nodes)])
    return Group(
        title(scene),
        clusters(scene, troubles, shares[0], width),
        Text(),
        pods(scene, shares[1]),
        Text(),
        nodes(scene, shares[2], width),
        *foot,
    )


def shared(room: int, wanted: Sequence[int]) -> list[int]:
    """Rows for each list: the first are served first, but each has a few if it wants them."""
    found = [min(each, LEAST) for each in wanted]
    rest = room - sum(found)
    for number, each in enumerate(wanted):
        more = max(min(each - found[number], rest), 0)
        found[number], rest = found[number] + more, rest - more
    return found


def folded(line: str, width: int) -> Iterator[str]:
    """A line in pieces that fit, which a shell puts together again."""
    while len(line) > width:
        yield f"{line[: width - 1]}\\"
        line = line[width - 1 :]
    yield line


def title(scene: Scene) -> RenderableType:
    ready = sum(each.ready for each in scene.nodes)
    told = f"{counted(len(scene.bindings), 'cluster')} and {ready} of {counted(len(scene.nodes), 'node')} ready"
    return Text.assemble(("Tapestry", "bold"), f"  {told}  ", (f"{scene.now:%H:%M}", "dim"), no_wrap=True)


# -- lists


def grid(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], droppable: Sequence[str], width: int) -> Table:
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


def clusters(scene: Scene, troubles: Sequence[str], room: int, width: int) -> RenderableType:
    if not scene.bindings:
        return Text("no cluster has joined", "yellow")
    shown = scene.bindings[: fitting(len(scene.bindings), room)]
    rows: list[list[str | Text]] = []
    for each in shown:
        amounts = [use(each, "cpu"), use(each, "memory")]
        leasing = styled(each.leasing or each.phase)
        rows.append([each.name, leasing, str(each.nodes), str(each.pods), *amounts, change(each, scene.now)])
    columns = ["CLUSTER", "LEASING", "NODES", "PODS", "CPU", "MEMORY", "NEXT CHANGE"]
    table = grid(columns, rows, ("MEMORY", "PODS", "CPU"), width)
    said = [Text(f"  {each}", "yellow", no_wrap=True, overflow="ellipsis") for each in troubles[: room - len(shown)]]
    return Group(table, *said, *more(len(scene.bindings) - len(shown), "cluster"))


def nodes(scene: Scene, room: int, width: int) -> RenderableType:
    remarkable = sorted(scene.nodes, key=lambda each: (each.ready and each.state == "Open", each.name))
    shown = remarkable[: fitting(len(remarkable), room)]
    rows: list[list[str | Text]] = []
    for each in shown:
        ends = when(each.lease_ends, scene.now) if each.lease_ends else NONE
        state = styled(each.state if each.ready else "NotReady")
        rows.append([each.name, state, str(each.pods), use(each, "cpu"), use(each, "memory"), ends])
    columns = ["NODE", "STATE", "PODS", "CPU", "MEMORY", "LEASE ENDS"]
    table = grid(columns, rows, ("LEASE ENDS", "MEMORY", "CPU"), width)
    return Group(table, *more(len(scene.nodes) - len(shown), "node"))


def pods(scene: Scene, room: int) -> RenderableType:
    phases = sorted(scene.phases.items())
    parts = [Text.assemble(f"{count} ", styled(phase)) for phase, count in phases if count]
    head = Text.assemble(("PODS  ", "dim"), Text(", ").join(parts) if parts else "none yet")
    shown = scene.waiting[: fitting(len(scene.waiting), room)]
    return Group(head, *(wait(each, scene.now) for each in shown), *more(len(scene.waiting) - len(shown), "pod"))


def wait(pod: PodStatus, now: datetime) -> Text:
    why = reason_text(pod.reason, pod.why)
    text = f"  {pod.namespace}/{pod.name} waits for {ago(pod.created, now)}: {why}"
    return Text(text, no_wrap=True, overflow="ellipsis")


def fitting(count: int, room: int) -> int:
    """How many of them are shown: where they do not all fit, a line tells of the others."""
    return count if count <= room else max(room - 1, 0)


def more(count: int, noun: str) -> list[Text]:
    return [Text(f"  and {counted(count, noun)} more", "dim")] if count else []


# -- cells


def styled(word: str) -> Text:
    return Text(word, STYLES.get(word, ""))


def use(each: BindingStatus | NodeStatus, resource: str) -> str:
    """What is used of what is leased."""
    return use_text(each, resource) or NONE


def change(binding: BindingStatus, now: datetime) -> str:
    if binding.next_change is None:
        return NONE
    return f"{'opens' if binding.leasing == CLOSED else 'changes'} {when(binding.next_change, now)}"


def when(moment: datetime, now: datetime) -> str:
    """A moment as people say it: `22:00 (in 3h12m)`, `tomorrow 06:00 (in 9h)`, `Mon 06:00 (in 3d2h)`."""
    there = moment.astimezone(now.tzinfo)
    days = (there.date() - now.date()).days
    day = {0: "", 1: "tomorrow "}.get(days, f"{there:%a} " if 0 < days < 7 else f"{there:%d %b} ")
    return f"{day}{there:%H:%M} ({f'in {span(moment - now)}' if moment > now else 'now'})"

import pytest

from tapestry.controller.phase_table import Phase, PhaseTable
from tapestry.controller.phases import PhaseMachine
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource


async def stay(obj: Object) -> None: ...


ENDS = {"Done": Phase()}


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (ENDS, "the initial phase 'Pending' is not in the table"),
        ({"Pending": Phase(stay)}, "Pending: needs both a handler and next phases, or neither"),
        ({"Pending": Phase(to=("Done",)), **ENDS}, "Pending: needs both a handler and next phases, or neither"),
        ({"Pending": Phase(stay, to=("Gone",))}, "Pending: next phase 'Gone' is not in the table"),
        (
            {"Pending": Phase(stay, to=("Done",), on_failure="Failed"), **ENDS, "Failed": Phase()},
            "Pending: on_failure 'Failed' is not one of its next phases",
        ),
        (
            {"Pending": Phase(stay, to=("Done",), timeout=5), **ENDS},
            "Pending: timeout and retries need on_failure",
        ),
        (
            {"Pending": Phase(stay, to=("Done",), retries=0), **ENDS},
            "Pending: timeout and retries need on_failure",
        ),
        ({"Pending": Phase(stay, to=("Done",)), **ENDS, "Lost": Phase()}, "Lost: cannot be reached from 'Pending'"),
        ({"Pending": Phase(stay, to=("Done",)), **ENDS, "Deleting": Phase()}, "Deleting: needs a handler"),
        (
            {"Pending": Phase(stay, to=("Done",)), **ENDS, "Deleting": Phase(stay, to=("Done",))},
            "Done: can be reached from 'Pending' and from 'Deleting'; a deletion needs phases of its own",
        ),
    ],
)
def test_invalid_table_is_rejected_with_reason(phases: dict[str, Phase], message: str, widgets: Resource) -> None:
    with pytest.raises(ValueError) as refused:
        PhaseMachine(widgets, "Pending", phases)
    assert str(refused.value).startswith("the phases of Widget: ")
    assert message in str(refused.value)


def test_all_table_errors_are_reported_together(widgets: Resource) -> None:
    phases = {"Pending": Phase(stay, to=("Gone", "Lost"))}
    with pytest.raises(ValueError, match=r"'Gone'.*'Lost'"):
        PhaseMachine(widgets, "Pending", phases)


def test_table_is_drawn_for_terminal_and_as_mermaid() -> None:
    phases = {
        "Pending": Phase(stay, to=("Work-1",)),
        "Work-1": Phase(stay, to=("Pending", "Done", "Failed"), timeout=90, retries=1, on_failure="Failed"),
        "Done": Phase(),
        "Failed": Phase(),
        "Deleting": Phase(stay, to=("Deleted",)),
        "Deleted": Phase(),
    }
    table = PhaseTable("Pending", phases)
    assert table.tree().splitlines() == [
        "created ─▶ Pending",
        " └─▶ Work-1  (90 s, 1 retry, then Failed)",
        "     ├─▶ Pending ↑",
        "     ├─▶ Done ■",
        "     └─▶ Failed ■",
        "deleted ─▶ Deleting",
        " └─▶ Deleted ■",
    ]
    assert table.mermaid().splitlines() == [
        "stateDiagram-v2",
        '    state "Work-1" as phase_1',
        "    [*] --> Pending: created",
        "    [*] --> Deleting: deleted",
        "    Pending --> phase_1",
        "    phase_1 --> Pending",
        "    phase_1 --> Done",
        "    phase_1 --> Failed: 90 s, 1 retry",
        "    Done --> [*]",
        "    Failed --> [*]",
        "    Deleting --> Deleted",
        "    Deleted --> [*]",
    ]

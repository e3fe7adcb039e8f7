"""What the demo shows; that it plays is for tests/e2e/test_demo.py."""

from tapestry.local.demo import shortened


def test_rights_are_counted_and_not_told_one_by_one() -> None:
    said = "created    physical  Namespace x\ngranted    physical  get nodes\ngranted    physical  list nodes\njoined\n"
    assert shortened(said) == "created    physical  Namespace x\ngranted    physical  2 rights\njoined"


def test_what_else_is_said_is_shown_as_it_is() -> None:
    assert shortened("a\nb\n") == "a\nb"

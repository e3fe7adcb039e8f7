"""The help text of each command and option stands alone."""

import pytest

import reference


def test_help_texts_stand_alone() -> None:
    assert reference.dependent_help() == []


@pytest.mark.parametrize(
    "text", ["", "Pods.", "Namespace. [default: that of the context]", "Its key file.", "The same for writes."]
)
def test_a_help_text_that_needs_another_is_found(text: str) -> None:
    assert not reference.stands_alone(text)


def test_the_check_fails_for_a_dependent_help_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "pages", dict)
    monkeypatch.setattr(reference, "dependent_help", lambda: ["tapestry up --nodes"])
    assert reference.run(["--check"]) == 1
    assert "tapestry up --nodes" in capsys.readouterr().out

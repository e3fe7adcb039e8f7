"""The verdict on a run of conformance tests."""

from pathlib import Path

import pytest

import conformance

REPORT = """<testsuites><testsuite>
<testcase name="[It] [sig-a] one [Conformance]" status="passed"/>
<testcase name="[It] [sig-a] two [Conformance]" status="failed"><failure/></testcase>
<testcase name="[It] [sig-b] another" status="skipped"/>
</testsuite></testsuites>"""
ONE, TWO, THREE = "[sig-a] one [Conformance]", "[sig-a] two [Conformance]", "[sig-a] three [Conformance]"


def test_what_a_report_does_not_mention_was_not_run(tmp_path: Path) -> None:
    (tmp_path / "junit_01.xml").write_text(REPORT)
    assert conformance.outcomes(tmp_path, [ONE, TWO, THREE]) == {ONE: "passed", TWO: "failed", THREE: "not run"}


@pytest.mark.parametrize(
    ("states", "known", "code"),
    [
        ({ONE: "passed", TWO: "passed"}, [], 0),
        ({ONE: "passed", TWO: "failed"}, [], 1),
        ({ONE: "passed", TWO: "failed"}, [TWO], 0),
        ({ONE: "passed", TWO: "not run"}, [], 1),
        ({ONE: "passed", TWO: "passed"}, [TWO], 1),  # the list is to be made shorter
        ({ONE: "passed"}, [TWO], 0),  # which did not run
    ],
)
def test_a_run_is_good_when_just_those_fail_that_are_known_to(
    states: dict[str, str], known: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance.judged(states, known) == code
    passed = sum(state == "passed" for state in states.values())
    assert f"{passed} passed, {len(states) - passed} failed, {len(states)} in all" in capsys.readouterr().out


def test_every_test_that_is_known_to_fail_is_one_that_is_run() -> None:
    names = conformance.names_in(conformance.LISTS / "needs-only-a-server.txt")
    assert len(names) == len(set(names)) == 103
    assert set(conformance.names_in(conformance.LISTS / "not-yet.txt")) <= set(names)

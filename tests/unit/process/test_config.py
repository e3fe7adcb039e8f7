import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.process.config import ConfigError, Section, load_config, settings


class Election(Section, frozen=True):
    enabled: bool = True
    lease_seconds: Annotated[float, msgspec.Meta(gt=0)] = 15
    renew_seconds: float = 10

    def __post_init__(self) -> None:
        if self.renew_seconds >= self.lease_seconds:
            raise ValueError(f"renewSeconds: {self.renew_seconds} must be under leaseSeconds, {self.lease_seconds}")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class TLS(Section, frozen=True):
    cert_file: str
    key_file: str


class Rule(Section, frozen=True):
    name: str


class App(Section, frozen=True):
    binding: str
    workers: int = 4
    format: Literal["auto", "json"] = "auto"
    colour: Colour = Colour.RED
    namespaces: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    address: str | None = ":8080"
    leader_election: Election = Election(lease_seconds=30)
    tls: TLS | None = None


def configured(
    tmp_path: Path | None = None,
    text: str | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, Any] | None = None,
) -> App:
    file = None
    if tmp_path is not None and text is not None:
        file = tmp_path / "config.yaml"
        file.write_text(text)
    return load_config(App, file=file, environ=environ or {}, flags={"binding": "east", **(flags or {})})


def test_unset_values_have_defaults() -> None:
    assert configured() == App(binding="east")


def test_flags_win_over_environment_and_file(tmp_path: Path) -> None:
    text = "workers: 1\nformat: json\nleaderElection: {enabled: false, leaseSeconds: 20, renewSeconds: 5}"
    environ = {"TAPESTRY_LEADER_ELECTION_LEASE_SECONDS": "21", "TAPESTRY_LEADER_ELECTION_RENEW_SECONDS": "6"}
    found = configured(tmp_path, text, environ, {"leaderElection.renewSeconds": 7, "workers": None})
    assert found == App(
        binding="east",
        workers=1,
        format="json",
        leader_election=Election(enabled=False, lease_seconds=21, renew_seconds=7),
    )


def test_flags_may_be_nested_and_none_is_ignored() -> None:
    found = configured(flags={"leaderElection": {"enabled": False, "leaseSeconds": None}, "tls": None})
    assert found.leader_election == Election(enabled=False, lease_seconds=30)


def test_partial_section_keeps_its_section_default() -> None:
    assert configured(flags={"leaderElection.enabled": False}).leader_election.lease_seconds == 30


def test_optional_section_exists_once_set() -> None:
    assert configured().tls is None
    found = configured(environ={"TAPESTRY_TLS_CERT_FILE": "a.crt", "TAPESTRY_TLS_KEY_FILE": "a.key"})
    assert found.tls == TLS(cert_file="a.crt", key_file="a.key")


def test_empty_file_and_section_set_nothing(tmp_path: Path) -> None:
    assert configured(tmp_path, "") == configured(tmp_path, "leaderElection:\ntls:\n") == App(binding="east")


def test_null_is_a_value_if_allowed(tmp_path: Path) -> None:
    assert configured(tmp_path, "address: null").address is None


def test_environment_values_are_converted_by_type() -> None:
    found = configured(
        environ={
            "TAPESTRY_WORKERS": "8",
            "TAPESTRY_LEADER_ELECTION_ENABLED": "False",
            "TAPESTRY_NAMESPACES": "a, b,",
            "TAPESTRY_LABELS": '{"team": "x"}',
            "TAPESTRY_RULES": '[{"name": "first"}]',
            "TAPESTRY_COLOUR": "blue",
            "TAPESTRY_ADDRESS": "",
        }
    )
    assert (found.workers, found.leader_election.enabled) == (8, False)
    assert (found.namespaces, found.labels, found.rules) == (("a", "b"), {"team": "x"}, (Rule(name="first"),))
    assert (found.colour, found.address) == (Colour.BLUE, "")


def test_unrelated_variables_are_ignored() -> None:
    environ = {"PATH": "/bin", "TAPESTRY_APISERVER_SERVICE_HOST": "10.0.0.1", "TAPESTRY_CONSOLE_PORT": "tcp://x:1"}
    assert configured(environ=environ) == App(binding="east")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("leaderElection: {leaseSeconds: x}", "leaderElection.leaseSeconds: expected a number, got 'x'"),
        ("leaderElection: {leaseSeconds: 0}", "leaderElection.leaseSeconds: expected a number > 0.0, got 0"),
        ("leaderElection: {enabled: 'yes'}", "leaderElection.enabled: expected true or false, got 'yes'"),
        ("leaderElection: 3", "leaderElection: expected a mapping, got 3"),
        ("workers: '8'", "workers: expected a whole number, got '8'"),
        ("workers: null", "workers: expected a whole number, got None"),
        ("address: 8080", "address: expected a string or nothing, got 8080"),
        ("format: xml", "format: expected one of auto, json, got 'xml'"),
        ("colour: green", "colour: expected one of red, blue, got 'green'"),
        ("namespaces: [a, 1]", "namespaces[1]: expected a string, in ['a', 1]"),
        ("rules: [{nam: a}]", "rules[0]: object contains unknown field nam, in [{'nam': 'a'}]"),
        ("leaderElectoin: {}", "leaderElectoin: unknown; did you mean leaderElection?"),
        ("leaderElection: {leaseSecond: 1}", "leaderElection.leaseSecond: unknown; did you mean leaderElection.leaseS"),
        ("tls: {zzz: 1}", "tls.zzz: unknown; known here: tls.certFile, tls.keyFile"),
        ("[a, b]", "expected a mapping, got ['a', 'b']"),
        ("a: b: c", "line 1: mapping values are not allowed here"),
    ],
)
def test_file_error_names_path_and_value(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'config.yaml'}: {wanted}")


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"TAPESTRY_WORKERS": "many"}, "TAPESTRY_WORKERS: workers: expected a whole number, got 'many'"),
        ({"TAPESTRY_LABELS": "{a"}, "TAPESTRY_LABELS: labels: expected a mapping, got '{a'"),
        ({"TAPESTRY_WORKER": "1"}, "TAPESTRY_WORKER: unknown; did you mean TAPESTRY_WORKERS?"),
        (
            {"TAPESTRY_LEADERELECTION_ENABLED": "1"},
            "TAPESTRY_LEADERELECTION_ENABLED: unknown; did you mean TAPESTRY_LEADER_ELECTION_ENABLED?",
        ),
    ],
)
def test_environment_error_names_the_variable(environ: dict[str, str], wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(environ=environ)
    assert str(caught.value) == wanted


def test_command_line_error_names_its_source() -> None:
    with pytest.raises(ConfigError, match=r"^command line: workers: expected a whole number, got '8'$"):
        configured(flags={"workers": "8"})
    with pytest.raises(ConfigError, match=r"^command line: workres: unknown; did you mean workers\?$"):
        configured(flags={"workres": 8})


def test_required_setting_error_names_all_sources() -> None:
    with pytest.raises(ConfigError, match=r"^binding: required; .* TAPESTRY_BINDING "):
        load_config(App, file=None, environ={}, flags={})
    with pytest.raises(ConfigError, match=r"^tls.keyFile: required; .* TAPESTRY_TLS_KEY_FILE "):
        configured(flags={"tls.certFile": "a.crt"})


def test_rules_are_checked_after_merging_sources(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^leaderElection: renewSeconds: 25.0 must be under leaseSeconds, 20.0$"):
        configured(tmp_path, "leaderElection: {leaseSeconds: 20}", flags={"leaderElection.renewSeconds": 25})


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.yaml: cannot be read: No such file"):
        load_config(App, file=tmp_path / "missing.yaml", environ={}, flags={})


def test_rule_7_error_does_not_quote_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, "workers: {token: abcdef}")
    assert "abcdef" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, "password: hunter2: x")
    assert "hunter2" not in str(caught.value)


def test_settings_may_not_share_a_variable() -> None:
    class Inner(Section, frozen=True):
        enabled: bool = True

    class Outer(Section, frozen=True):
        audit: Inner = Inner()
        audit_enabled: bool = True

    with pytest.raises(TypeError, match=r"audit.enabled and auditEnabled are both TAPESTRY_AUDIT_ENABLED"):
        settings(Outer)


@given(workers=st.integers(-(2**40), 2**40), enabled=st.booleans(), lease=st.floats(11, 1e9))
def test_all_sources_give_equal_values(workers: int, enabled: bool, lease: float) -> None:
    flags = {"workers": workers, "leaderElection": {"enabled": enabled, "leaseSeconds": lease}}
    environ = {
        "TAPESTRY_WORKERS": str(workers),
        "TAPESTRY_LEADER_ELECTION_ENABLED": str(enabled),
        "TAPESTRY_LEADER_ELECTION_LEASE_SECONDS": repr(lease),
    }
    assert configured(flags=flags) == configured(environ=environ)

"""Loading of configuration from flags, environment and a YAML file into one frozen value.

    class LeaderElection(Section, frozen=True):
        enabled: bool = True
        lease_seconds: Annotated[float, Meta(gt=0)] = 15

    class Syncer(Section, frozen=True):
        binding: str
        leader_election: LeaderElection = LeaderElection()

A setting has one path, `leaderElection.leaseSeconds`, and three sources, in order of precedence: the command line, the
environment (`TAPESTRY_LEADER_ELECTION_LEASE_SECONDS`) and a YAML file.  Errors are ConfigErrors that name the source,
the path and the value.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import inspect, structs

from tapestry.process.logs import redacted

PREFIX = "TAPESTRY_"
COMMAND_LINE = "command line"

# msgspec's type names in terms of YAML.
TYPE_PHRASES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


class ConfigError(ValueError):
    """An invalid configuration.  The message names the source, the value and what is expected."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all configuration structs.  Check rules between fields in `__post_init__` by raising ValueError."""


S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its `path` in YAML and on the command line, its `variable` in the environment."""

    path: str
    variable: str
    type: Any


def load_config(struct_type: type[S], *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> S:
    """Return the configuration of a process.  `flags` are nested or have dotted paths; None means not given."""
    known = settings(struct_type)
    values: dict[str, Any] = {}
    if file is not None:
        for path, value in flatten(read_yaml(file), known, str(file)):
            values[path] = convert_value(value, known[path], str(file))
    values |= environment_settings(environ, known)
    for path, value in flatten(flags, known, COMMAND_LINE):
        if value is not None:
            values[path] = convert_value(value, known[path], COMMAND_LINE)
    return build_section(struct_type, values, known, "", None)


def settings(struct_type: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return all settings by path, in the order of the fields."""
    by_path = {setting.path: setting for setting in walk_settings(struct_type, "", PREFIX)}
    variables: dict[str, str] = {}
    for setting in by_path.values():
        other = variables.setdefault(setting.variable, setting.path)
        if other != setting.path:
            raise TypeError(f"{struct_type.__name__}: {other} and {setting.path} are both {setting.variable}")
    return by_path


def walk_settings(struct_type: type[msgspec.Struct], path: str, variable: str) -> Iterator[Setting]:
    for field in structs.fields(struct_type):
        field_path, field_variable = path + field.encode_name, variable + field.name.upper()
        section = section_of(field.type)
        if section is None:
            yield Setting(field_path, field_variable, field.type)
        else:
            yield from walk_settings(section, f"{field_path}.", f"{field_variable}_")


def section_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct type of `TLS` or `TLS | None`, or None for a single setting."""
    if get_origin(kind) in (Union, UnionType):
        kinds = [member for member in get_args(kind) if member is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else None
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def read_yaml(file: Path) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        # PyYAML's own message quotes the lines around the error, which may contain a secret.
        mark = getattr(error, "problem_mark", None)
        location = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{file}: {location}{getattr(error, 'problem', None) or 'this is not YAML'}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: expected a mapping, got {quoted(document)}")
    return document


def flatten(
    values: Mapping[Any, Any], known: Mapping[str, Setting], source: str, at: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the settings in a nested mapping.  An empty section sets nothing."""
    for key, value in values.items():
        path = f"{at}{key}"
        if path in known:
            yield path, value
        elif not any(name.startswith(f"{path}.") for name in known):
            raise ConfigError(f"{source}: {path}: unknown; {suggestion(path, known)}")
        elif isinstance(value, Mapping):
            yield from flatten(value, known, source, f"{path}.")
        elif value is not None:
            raise ConfigError(f"{source}: {path}: expected a mapping, got {quoted(value)}")


def suggestion(path: str, known: Mapping[str, Setting]) -> str:
    depth = path.count(".") + 1
    candidates = dict.fromkeys(".".join(name.split(".")[:depth]) for name in known)
    near = difflib.get_close_matches(path, candidates, n=1)
    if near:
        return f"did you mean {near[0]}?"
    siblings = [name for name in candidates if name.rpartition(".")[0] == path.rpartition(".")[0]]
    return f"known here: {', '.join(siblings)}"


def environment_settings(environ: Mapping[str, str], known: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the settings in the environment.

    The environment is shared: Kubernetes adds `TAPESTRY_..._SERVICE_HOST` for our Services, and a shell has variables
    for other processes.  So an unknown name is an error only if it is similar to a known one: a likely typo.
    """
    by_name = {setting.variable.removeprefix(PREFIX): setting for setting in known.values()}
    values = {}
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable:
            continue
        setting = by_name.get(name)
        if setting is not None:
            values[setting.path] = convert_value(parse_variable(text, setting), setting, variable, strict=False)
        elif near := difflib.get_close_matches(name, by_name, n=1, cutoff=0.85):
            raise ConfigError(f"{variable}: unknown; did you mean {PREFIX}{near[0]}?")
    return values


def parse_variable(text: str, setting: Setting) -> Any:
    """Parse a variable: lists as `a,b`, mappings and lists of mappings as JSON, other values as text."""
    kinds = union_members(setting.type)
    if not any(isinstance(kind, inspect.CollectionType | inspect.DictType) for kind in kinds):
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text  # not a list or mapping: the conversion reports it
    return [item.strip() for item in text.split(",") if item.strip()]


def union_members(kind: Any) -> tuple[inspect.Type, ...]:
    """Return the types that a setting may have."""
    info = inspect.type_info(kind)
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def convert_value(value: Any, setting: Setting, source: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, setting.type, strict=strict)
    except msgspec.ValidationError as error:
        problem, _, within = str(error).partition(" - at `$")
        expected = problem.split(", got ")[0]
        if expected.startswith("Invalid enum value"):
            expected = f"expected one of {', '.join(choices(setting.type))}"
        else:
            expected = re.sub(r"`([^`]*)`", lambda match: type_phrase(match[1]), expected[:1].lower() + expected[1:])
        within = within.rstrip("`")
        got = f"in {quoted(value)}" if within else f"got {quoted(value)}"
        raise ConfigError(f"{source}: {setting.path}{within}: {expected}, {got}") from None


def type_phrase(types: str) -> str:
    return " or ".join(TYPE_PHRASES.get(name, name) for name in types.split(" | "))


def choices(kind: Any) -> list[str]:
    """Return the values that the enum or Literal in `kind`, or in its items, allows."""
    for member in union_members(kind):
        candidate = getattr(member, "item_type", member)
        if isinstance(candidate, inspect.LiteralType):
            return [str(value) for value in candidate.values]
        if isinstance(candidate, inspect.EnumType):
            return [str(item.value) for item in candidate.cls]
    return []


def quoted(value: Any) -> str:
    text = redacted(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def build_section(
    struct_type: type[S], values: Mapping[str, Any], known: Mapping[str, Setting], at: str, base: S | None
) -> S:
    """Build the struct at path `at` from `values`, with `base` or the fields' defaults for the rest."""
    given: dict[str, Any] = {}
    for field in structs.fields(struct_type):
        path = at + field.encode_name
        section = section_of(field.type)
        if path in values:
            given[field.name] = values[path]
        elif section is not None and (field.required or any(name.startswith(f"{path}.") for name in values)):
            nested = default_of(field) if base is None else getattr(base, field.name)
            given[field.name] = build_section(section, values, known, f"{path}.", nested)
        elif field.required and base is None:
            hint = f"set it on the command line, as {known[path].variable} or in the file"
            raise ConfigError(f"{path}: required; {hint}")
    try:
        return struct_type(**given) if base is None else structs.replace(base, **given)
    except ValueError as error:
        raise ConfigError(f"{at.rstrip('.') or 'configuration'}: {error}") from error


def default_of(field: structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default

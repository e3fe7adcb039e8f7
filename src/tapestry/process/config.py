"""Configuration: one frozen value per process, built at the edge and passed down.

    class LeaderElection(Section, frozen=True):
        enabled: bool = True
        lease_seconds: Annotated[float, Meta(gt=0)] = 15

    class Syncer(Section, frozen=True):
        binding: str
        leader_election: LeaderElection = LeaderElection()

A setting has one path, `leaderElection.leaseSeconds`, and three places to be said, the first of which counts: the
command line, the environment (`TAPESTRY_LEADER_ELECTION_LEASE_SECONDS`) and a YAML file.  Whatever is wrong is a
ConfigError that names the place, the path and what was found there.
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

# msgspec's names of types, in the words of someone who writes YAML.
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
    """What was configured cannot be used; the message says where, what was found and what would do."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The base of every configuration; rules between fields are a `__post_init__` that raises ValueError."""


S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that can be set: `path` in YAML and on the command line, `variable` in the environment."""

    path: str
    variable: str
    type: Any


def load_config(struct_type: type[S], *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> S:
    """The configuration of a process; `flags` are nested or have dotted paths as keys, and None is not given."""
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
    """Every setting of a configuration by its path, in the order of the fields."""
    found = {setting.path: setting for setting in walk_settings(struct_type, "", PREFIX)}
    variables: dict[str, str] = {}
    for setting in found.values():
        other = variables.setdefault(setting.variable, setting.path)
        if other != setting.path:
            raise TypeError(f"{struct_type.__name__}: {other} and {setting.path} are both {setting.variable}")
    return found


def walk_settings(struct_type: type[msgspec.Struct], path: str, variable: str) -> Iterator[Setting]:
    for field in structs.fields(struct_type):
        field_path, field_variable = path + field.encode_name, variable + field.name.upper()
        section = section_of(field.type)
        if section is None:
            yield Setting(field_path, field_variable, field.type)
        else:
            yield from walk_settings(section, f"{field_path}.", f"{field_variable}_")


def section_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct behind `TLS` or `TLS | None`; None for anything that is a single setting."""
    if get_origin(kind) in (Union, UnionType):
        kinds = [member for member in get_args(kind) if member is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else None
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def read_yaml(file: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        # PyYAML's own text quotes the lines around the mistake, and those may hold a secret.
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{file}: {where}{getattr(error, 'problem', None) or 'this is not YAML'}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: expected a mapping, got {quoted(found)}")
    return found


def flatten(
    values: Mapping[Any, Any], known: Mapping[str, Setting], source: str, at: str = ""
) -> Iterator[tuple[str, Any]]:
    """The settings in a nested mapping; a section that is there but empty sets nothing."""
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
    """The settings in the environment.

    The environment is shared: Kubernetes adds `TAPESTRY_..._SERVICE_HOST` for our own Services, a shell has variables
    for our other processes.  So an unknown name is refused only where it is nearly a known one: a slip of the pen.
    """
    by_name = {setting.variable.removeprefix(PREFIX): setting for setting in known.values()}
    found = {}
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable:
            continue
        setting = by_name.get(name)
        if setting is not None:
            found[setting.path] = convert_value(parse_variable(text, setting), setting, variable, strict=False)
        elif near := difflib.get_close_matches(name, by_name, n=1, cutoff=0.85):
            raise ConfigError(f"{variable}: unknown; did you mean {PREFIX}{near[0]}?")
    return found


def parse_variable(text: str, setting: Setting) -> Any:
    """What a variable says: lists as `a,b`, mappings and lists of mappings as JSON, anything else as it stands."""
    kinds = union_members(setting.type)
    if not any(isinstance(kind, inspect.CollectionType | inspect.DictType) for kind in kinds):
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text  # which is no list and no mapping: the conversion says so
    return [item.strip() for item in text.split(",") if item.strip()]


def union_members(kind: Any) -> tuple[inspect.Type, ...]:
    """The types that a setting may have, more than one in a union."""
    found = inspect.type_info(kind)
    return found.types if isinstance(found, inspect.UnionType) else (found,)


def convert_value(value: Any, setting: Setting, source: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, setting.type, strict=strict)
    except msgspec.ValidationError as error:
        problem, _, within = str(error).partition(" - at `$")
        wanted = problem.split(", got ")[0]
        if wanted.startswith("Invalid enum value"):
            wanted = f"expected one of {', '.join(choices(setting.type))}"
        else:
            wanted = re.sub(r"`([^`]*)`", lambda match: type_phrase(match[1]), wanted[:1].lower() + wanted[1:])
        within = within.rstrip("`")
        got = f"in {quoted(value)}" if within else f"got {quoted(value)}"
        raise ConfigError(f"{source}: {setting.path}{within}: {wanted}, {got}") from None


def type_phrase(types: str) -> str:
    return " or ".join(TYPE_PHRASES.get(name, name) for name in types.split(" | "))


def choices(kind: Any) -> list[str]:
    """The values that the enum or the Literal in `kind`, or in its items, allows."""
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
    """The struct at the path `at`, of what was set below it and, for the rest, of `base` or the fields' defaults."""
    given: dict[str, Any] = {}
    for field in structs.fields(struct_type):
        path = at + field.encode_name
        section = section_of(field.type)
        if path in values:
            given[field.name] = values[path]
        elif section is not None and (field.required or any(name.startswith(f"{path}.") for name in values)):
            below = default_of(field) if base is None else getattr(base, field.name)
            given[field.name] = build_section(section, values, known, f"{path}.", below)
        elif field.required and base is None:
            wanted = f"set it on the command line, as {known[path].variable} or in the file"
            raise ConfigError(f"{path}: required; {wanted}")
    try:
        return struct_type(**given) if base is None else structs.replace(base, **given)
    except ValueError as error:
        raise ConfigError(f"{at.rstrip('.') or 'configuration'}: {error}") from error


def default_of(field: structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default

"""Find what must not be in this repository, and print the numbers a reader may want to look into.

A smell fails `make check`: the zeroes of CONTRIBUTING.md that neither ruff, mypy nor import-linter can see.  An alarm
never fails: a long file with one subject is better than two with half a subject each.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeGuard

Files = Mapping[str, str]
"""Path, with slashes and from the root of the repository, to text."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Smell:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def smells(files: Files) -> list[Smell]:
    found: list[Smell] = []
    for path, text in files.items():
        found += name_smells(path)
        found += line_smells(path, text)
        if path.endswith(".md"):
            found += command_smells(path, text, files)
        if path.endswith(".py"):
            found += code_smells(path, ast.parse(text, path))
    found += repeated_names(files)
    if MIRROR in files:
        found += untested_modules(files)
    if PROJECT in files:
        found += unchecked_purity(files)
    return sorted(found)


# File names

GRAB_BAGS = {"util", "utils", "utilities", "helper", "helpers", "common", "misc"}
LEFTOVERS = re.compile(
    r"(?i)(^|/)(?<!/templates/)(plan|todo|notes|scratch)(\.\w+)?$|(?<!openapi)_v\d+\.py$|\.(bak|orig|rej)$"
)


def name_smells(path: str) -> Iterator[Smell]:
    parts = {part.removeprefix("test_") for part in PurePosixPath(path).with_suffix("").parts}
    if path.endswith(".py") and (bag := parts & GRAB_BAGS):
        yield Smell(path, 1, f"grab bag: a module is named after its subject, not `{bag.pop()}`")
    if found := set(parts_of(path)) & RETIRED:
        yield Smell(path, 1, f"retired word: `{found.pop()}`; ARCHITECTURE.md has the glossary")
    if LEFTOVERS.search(path):
        yield Smell(path, 1, "leftover: plans and copies do not stay in the repository")


# Words

RETIRED_IN_PROSE = set(
    re.findall(
        r"\w+",
        """
        belongings chronicle companions customs dislike guise heir leisure liking namesake namesakes patience picky
        roomy scribe stowage stranger strangers vigil wishes
        """,
    )
)
"""Words that neither names nor texts may contain."""
RETIRED = RETIRED_IN_PROSE | set(
    re.findall(
        r"\w+",
        """
        asked asking company door doors elder ground judge kept lone losses making mend mends met neighbours newcomer
        newcomers nobody opinion opinions picture pictures reception recurring room rooms settle settled shown site
        stow telling told wish
        """,
    )
)
"""Words that no name may contain: the glossary in ARCHITECTURE.md and Kubernetes have better ones."""
SHARED_NAMES = {"install"}
"""Public functions that several modules of a package define: each registers the controllers of its module."""
MOST_DEFINITIONS = 2
"""Modules of one package that may define the same public name."""


def retired_words(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Definitions whose name has a retired word."""
    for node in ast.walk(tree):
        if found := set(parts_of(defined_name(node))) & RETIRED:
            yield node, found.pop()


def defined_name(node: ast.AST) -> str:
    """The name that a definition, a parameter or an assignment introduces; empty for other nodes."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return ""


def parts_of(name: str) -> list[str]:
    """The lower-case words of a snake_case or CamelCase name."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


MOST_WORDS = 9
"""Words in the name of a test, after `test_` and the number of a safety rule."""


def long_names(tree: ast.Module) -> Iterator[ast.AST]:
    for function in functions(tree):
        name = re.fullmatch(r"test_(?:safety_rule_\d+_)?(.*)", function.name)
        if name and len(name[1].split("_")) > MOST_WORDS:
            yield function


def repeated_names(files: Files) -> Iterator[Smell]:
    """Public module-level functions and classes that more than two modules of one package define."""
    places: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for path, text in files.items():
        if path.startswith("src/tapestry/") and path.endswith(".py"):
            package = path.split("/")[2]
            for node in ast.parse(text, path).body:
                if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault((package, node.name), []).append((path, node.lineno))
    for (package, name), found in places.items():
        if len(found) > MOST_DEFINITIONS and name not in SHARED_NAMES:
            path, line = found[-1]
            yield Smell(path, line, f"repeated name: {len(found)} modules of {package} define `{name}`")


# Tests

MIRROR = "tests/mirror.toml"
ENTRY = re.compile(r'"(.+)" = "(.+)"')


def untested_modules(files: Files) -> Iterator[Smell]:
    """Modules with neither a unit test of the same name nor an entry in the table, and entries that are wrong."""
    lines = enumerate(files[MIRROR].splitlines(), 1)
    entries = [(number, *found.groups()) for number, line in lines if (found := ENTRY.fullmatch(line))]
    places = {place for _, place, _ in entries}
    needed: set[str] = set()
    for path in files:
        if path.startswith("src/tapestry/") and path.endswith(".py") and not path.endswith("__init__.py"):
            module = PurePosixPath(path).relative_to("src/tapestry").with_suffix("")
            if f"tests/unit/{module.parent}/test_{module.name}.py" in files:
                continue
            needed |= (names := {str(module), *map(str, module.parents)})
            if not names & places:
                yield Smell(path, 1, f"untested: add a unit test of its name, or say in {MIRROR} where it is tested")
    for number, place, test in entries:
        if test not in files:
            yield Smell(MIRROR, number, f"table of tests: there is no {test}")
        if place not in needed:
            yield Smell(MIRROR, number, f"table of tests: {place} needs no line")


# Pure modules

PROJECT = "pyproject.toml"
PURE = re.compile(r"\bPure\b|\bfunctions are pure\b")


def unchecked_purity(files: Files) -> Iterator[Smell]:
    """Modules whose docstring says that they are pure, and that no contract of import-linter keeps so."""
    contracts = tomllib.loads(files[PROJECT])["tool"]["importlinter"]["contracts"]
    checked = {
        module
        for contract in contracts
        if "asyncio" in contract.get("forbidden_modules", ())
        for module in contract["source_modules"]
    }
    for path, text in files.items():
        if path.startswith("src/tapestry/") and path.endswith(".py"):
            module = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").split("/")
            names = {".".join(module[:end]) for end in range(1, len(module) + 1)}
            if PURE.search(ast.get_docstring(ast.parse(text)) or "") and not names & checked:
                yield Smell(path, 1, f"unchecked purity: add the module to a contract in {PROJECT}")


# Lines


@dataclass(frozen=True)
class LineRule:
    """What no line of the files under `where` may say."""

    pattern: re.Pattern[str]
    message: str
    where: tuple[str, ...] = ("",)


HOSTS = r"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|proxy\.golang\.org|(docker|quay|gcr|ghcr|registry\.k8s)\.io"
TWO_CLUSTERS = tuple(f"src/tapestry/{part}/" for part in ("apis", "manager", "syncer", "nodeproxy", "inspect"))
LINE_RULES = [
    LineRule(re.compile(r"\b(TODO|FIXME|XXX)\b"), "stub: do it, or say in the docs that it is not done"),
    LineRule(re.compile(r"(?<![\w.~}])/(work|farm|root)/"), "machine path: other machines do not have it"),
    LineRule(re.compile(rf"\b({HOSTS})\b"), "registry host: which registry to use is for each machine to say"),
    LineRule(
        re.compile(r"(?i)_for_test(s|ing)\b|\bnone (for|in) tests\b|\bPYTEST_CURRENT_TEST\b"),
        "test-only path: tests use what users use",
        where=("src/",),
    ),
    LineRule(
        re.compile(r"(?i)(?<![a-z])(remote|local|real|member|shadow)[ _-]?(cluster|node|pod)s?(?![a-z])"),
        "glossary: the two sides are called virtual and physical",
        where=TWO_CLUSTERS,
    ),
    LineRule(
        re.compile(rf"(?i)\b({'|'.join(sorted(RETIRED_IN_PROSE))})\b"),
        "retired word: ARCHITECTURE.md has the glossary",
        where=("ARCHITECTURE.md", "CONTRIBUTING.md", "README", "docs/", "src/"),
    ),
]
THE_RULES_THEMSELVES = ("tools/smells.py", "tests/unit/test_smells.py")
UNCHECKED_WORDS = (*THE_RULES_THEMSELVES,)
"""Files whose words, docstrings and names of tests are not checked."""


def line_smells(path: str, text: str) -> Iterator[Smell]:
    if path in THE_RULES_THEMSELVES:
        return
    for rule in LINE_RULES:
        if path.startswith(rule.where):
            for match in rule.pattern.finditer(text):
                yield Smell(path, text.count("\n", 0, match.start()) + 1, f"{rule.message} (`{match[0]}`)")


# Documented commands

BLOCK = re.compile(
    r"(?:<!-- run by (?P<runner>\S+) -->\s*)?^[ \t]*```(?:bash|sh|shell|console)\n(?P<script>.*?)^[ \t]*```$"
    r"(?:\s*^[ \t]*```text\n(?P<output>.*?)^[ \t]*```$)?",
    re.MULTILINE | re.DOTALL,
)
USUAL_RUNNER = re.compile(r"<!-- commands run by (?P<runner>\S+) -->")


@dataclass(frozen=True)
class CommandBlock:
    """Commands in a document.  `runner` is the file that the comment above the block names: `<!-- run by FILE -->`."""

    line: int
    runner: str | None
    script: str
    output: str = ""
    """Expected output: the block of text that follows."""


def command_blocks(text: str) -> list[CommandBlock]:
    """All there are.  `<!-- commands run by FILE -->` says it of every block that names no other."""
    named = USUAL_RUNNER.search(text)
    usual = named["runner"] if named else None
    return [
        CommandBlock(
            text.count("\n", 0, match.start("script")), match["runner"] or usual, match["script"], match["output"] or ""
        )
        for match in BLOCK.finditer(text)
    ]


def command_smells(path: str, text: str, files: Files) -> Iterator[Smell]:
    for block in command_blocks(text):
        if block.runner is None:
            yield Smell(path, block.line, "documented command: say above it who runs it, `<!-- run by tests/... -->`")
        elif not block.runner.startswith(("tests/", ".ci/")) or block.runner not in files:
            yield Smell(path, block.line, f"documented command: there is no test {block.runner}")


# Code


def code_smells(path: str, tree: ast.Module) -> Iterator[Smell]:
    product = path.startswith(("src/", "examples/"))
    yield from at(path, grab_bag_classes(tree), "grab bag: a class is named after what it is")
    yield from at(path, recitals(tree), "recital: the docstring says no more than the signature")
    if not path.startswith(UNCHECKED_WORDS):
        for node, word in retired_words(tree):
            yield from at(path, [node], f"retired word: `{word}`; ARCHITECTURE.md has the glossary")
    yield from at(path, abandoned_tasks(tree), "unowned task: tasks live in a TaskGroup")
    if path.startswith("src/"):
        yield from at(path, indirect_docstrings(tree), "docstring: begin with a noun phrase or an imperative")
    if not path.startswith(UNCHECKED_WORDS):
        yield from at(path, third_person_docstrings(tree), "docstring: begin with a noun phrase or an imperative")
    if product:
        yield from at(path, stubs(tree), "stub: do it, or leave it out")
        if not path.startswith(("src/tapestry/controller/", "src/tapestry/client/")):
            yield from at(path, loose_tasks(tree), "unowned task: tasks live in a TaskGroup")
    if path.startswith("tests/"):
        yield from at(path, sleeps(tree), "sleeping test: wait for the event, or move the clock")
        yield from at(path, assertless_tests(tree), "assertless test: it cannot fail")
        if not path.startswith(UNCHECKED_WORDS):
            yield from at(path, long_names(tree), f"long name: the name of a test has at most {MOST_WORDS} words")


def at(path: str, nodes: Iterable[ast.AST], message: str) -> Iterator[Smell]:
    return (Smell(path, getattr(node, "lineno", 1), message) for node in nodes)


def grab_bag_classes(tree: ast.Module) -> Iterator[ast.AST]:
    bag = re.compile(r".(Manager|Helpers?|Utils?|Utilities)$")  # plain `Manager` runs controllers
    allowed = {"FieldManager"}  # the term of Kubernetes
    return (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name not in allowed and bag.search(node.name)
    )


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the dotted text of what is called."""
    return ((ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def abandoned_tasks(tree: ast.Module) -> Iterator[ast.AST]:
    return (call for name, call in calls(tree) if name.split(".")[-1] in ("ensure_future", "gather"))


def loose_tasks(tree: ast.Module) -> Iterator[ast.AST]:
    loose = re.compile(r"^create_task$|^asyncio\.create_task$|loop(\(\))?\.create_task$")
    return (call for name, call in calls(tree) if loose.search(name))


def stubs(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc and "NotImplementedError" in ast.unparse(node.exc):
            yield node
    abstract = {member for node in ast.walk(tree) if is_protocol(node) for member in ast.walk(node)}
    for function in functions(tree):
        decorators = {ast.unparse(decorator).split(".")[-1] for decorator in function.decorator_list}
        body = [ast.unparse(statement) for statement in function.body if not is_text(statement)]
        if body == ["pass"] or (
            body == ["..."] and function not in abstract and not decorators & {"overload", "abstractmethod"}
        ):
            yield function


def is_protocol(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)


def is_text(node: ast.stmt) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def sleeps(tree: ast.Module) -> Iterator[ast.AST]:
    # A test that runs on virtual time sleeps for free: that is how it moves the clock.
    moves_the_clock = any(
        isinstance(node, ast.ImportFrom)
        and ((node.module or "").startswith("tapestry.controller.testing") or imports(node, "in_virtual_time"))
        for node in ast.walk(tree)
    )
    for name, call in calls(tree):
        waits = name in ("asyncio.sleep", "sleep") and any(map(is_above_zero, call.args))
        if name == "time.sleep" or (waits and not moves_the_clock):
            yield call


def imports(node: ast.ImportFrom, name: str) -> bool:
    return any(each.name == name for each in node.names)


def is_above_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value > 0


def assertless_tests(tree: ast.Module) -> Iterator[ast.AST]:
    # Waiting is a check too: it ends in a TimeoutError.
    words = r"(assert|check|verify|wait_for|wait_until)\w*"
    checks = re.compile(rf"(^|\.)(raises|warns|fail|{words}|run_state_machine_as_test)$")
    for function in functions(tree):
        if function.name.startswith("test_") and not (
            any(isinstance(node, ast.Assert) for node in ast.walk(function))
            or any(checks.search(name) for name, _ in calls(function))
        ):
            yield function


FILLERS = {
    "a",
    "an",
    "and",
    "by",
    "for",
    "from",
    "given",
    "in",
    "is",
    "it",
    "its",
    "of",
    "on",
    "or",
    "return",
    "returns",
    "that",
    "the",
    "this",
    "to",
    "with",
}


def recitals(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef) and (text := ast.get_docstring(node)) is not None:
            signature = f"{node.name} {ast.unparse(node.args) if isinstance(node, Function) else ''}"
            if words(text) - FILLERS <= words(signature):
                yield node


INDIRECT = re.compile(r"(What|How|Who|Whose|Whom|Whether|Which|Where|When|Why|Nobody|Somebody)\b")


def indirect_docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """Docstrings, also those of fields, whose first word is a question word."""
    return (statement for statement in docstrings(tree) if INDIRECT.match(text_of(statement)))


THIRD_PERSON = re.compile(
    r"(Accepts|Adds|Admits|Allows|Applies|Approves|Asks|Assigns|Authenticates|Authorizes|Builds|Calls|Cleans|Closes|"
    r"Collects|Compares|Computes|Connects|Contains|Converts|Creates|Decides|Decodes|Defines|Deletes|Detects|Encodes|"
    r"Enforces|Ensures|Evicts|Explains|Fails|Finalizes|Finds|Follows|Forwards|Gets|Gives|Handles|Holds|Implements|"
    r"Injects|Installs|Keeps|Lets|Listens|Loads|Maintains|Makes|Manages|Masks|Measures|Merges|Moves|Opens|Owns|Parses|"
    r"Passes|Pauses|Prints|Provides|Provisions|Publishes|Raised|Raises|Receives|Registers|Rejects|Removes|Renews|"
    r"Replaces|Represents|Requeues|Resolves|Responds|Restricts|Returns|Rewrites|Runs|Scales|Selects|Sends|Serves|Sets|"
    r"Shows|Signs|Simulates|Stores|Takes|Tells|Tracks|Translates|Tries|Triggers|Validates|Verifies|Wraps|Yields"
    r"|(Caches|Checks|Copies|Counts|Formats|Limits|Lists|Logs|Maps|Matches|Names|Processes|Reads|Records|Reports|"
    r"Reviews|Schedules|Starts|Stops|Streams|Switches|Tests|Updates|Waits|Watches|Writes)"
    r" (a|an|all|each|its|one|the|whether))\b"
)
"""Verbs in the third person; those of the second list are also plurals, unless an article follows."""


def third_person_docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """Docstrings, also those of fields, that begin with a verb in the third person."""
    return (statement for statement in docstrings(tree) if THIRD_PERSON.match(text_of(statement)))


def docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    """Texts that stand alone, also those of fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            yield from (statement for statement in node.body if is_text(statement))


def text_of(statement: ast.Expr) -> str:
    return ast.literal_eval(statement.value).strip()


def words(text: str) -> set[str]:
    """Lower-case words, also those inside snake_case and CamelCase, without the s of plurals and third persons."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


# Alarms


def alarms(files: Files) -> Iterator[str]:
    code = {path: text for path, text in files.items() if path.endswith(".py")}
    source = {path: text for path, text in code.items() if path.startswith("src/")}
    tests = {path: text for path, text in code.items() if path.startswith("tests/")}
    yield "longest files:"
    lengths = sorted(((text.count("\n"), path) for path, text in code.items()), reverse=True)
    yield from (f"  {lines:5} {path}" for lines, path in lengths[:10])
    yield "most complex functions (McCabe):"
    knots = [
        (complexity(function), f"{path}:{function.lineno} {function.name}")
        for path, text in code.items()
        for function in functions(ast.parse(text, path))
    ]
    yield from (f"  {paths:5} {where}" for paths, where in sorted(knots, reverse=True)[:10])
    yield "counts:"
    for name, where, pattern in (
        ("lines in src", source, r"\n"),
        ("lines in tests", tests, r"\n"),
        ("broad excepts in src", source, r"except( (Base)?Exception\b.*)?:"),
        ("type: ignore in src", source, r"# type: ignore"),
        ("mocks in tests", tests, r"Mock\(|mock\.patch|monkeypatch\.setattr"),
    ):
        yield f"  {sum(len(re.findall(pattern, text)) for text in where.values()):5} {name}"


def complexity(function: Function) -> int:
    """Paths through a function, counted as ruff's C901 does."""
    forks = (
        ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.comprehension | ast.match_case | Function
    )
    return sum(isinstance(node, forks) for node in ast.walk(function))


GENERATED = "src/tapestry/vclusters/api/vcluster_api_pb2"


def repository(root: Path) -> dict[str, str]:
    """The text files that git tracks or would track, except generated code."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    files = {}
    for name in names:
        if name.startswith(GENERATED):
            continue
        try:
            files[name] = (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):  # not text, deleted, the empty last name
            continue
    return files


def main() -> int:
    files = repository(Path(__file__).parent.parent)
    print("\n".join(alarms(files)))
    found = smells(files)
    print("\n".join(map(str, found)) or "no smells")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

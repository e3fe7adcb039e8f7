"""Each rule of tools/smells.py fires on what it is meant for, and on nothing near it."""

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from smells import CommandBlock, alarms, command_blocks, complexity, functions, repository, smells


def found(path: str, text: str = "", **others: str) -> list[str]:
    """The rules, by the first words of their messages, that fire on one file."""
    return [smell.message.split(":")[0] for smell in smells({path: dedent(text), **others})]


@pytest.mark.parametrize(
    "path",
    ["src/tapestry/utils.py", "src/tapestry/common/pods.py", "tests/unit/helpers.py", "tests/unit/test_helpers.py"],
)
def test_a_module_is_named_after_its_subject(path: str) -> None:
    assert found(path) == ["grab bag"]


def test_a_class_is_named_after_what_it_is() -> None:
    assert found("src/a.py", "class PodManager: x = 1\nclass StringUtils: x = 1") == ["grab bag", "grab bag"]
    assert found("src/a.py", "class Manager: x = 1\nclass Managed: x = 1") == []


@pytest.mark.parametrize("path", ["PLAN.md", "docs/todo.md", "src/tapestry/pods_v2.py", "Makefile.bak", "NOTES"])
def test_plans_and_copies_do_not_stay(path: str) -> None:
    assert found(path) == ["leftover"]


def test_a_document_about_plans_may_stay() -> None:
    assert found("docs/planning.md") == []


@pytest.mark.parametrize("call", ["asyncio.create_task(f())", "asyncio.get_running_loop().create_task(f())"])
def test_only_the_framework_and_the_client_start_loose_tasks(call: str) -> None:
    assert found("src/tapestry/syncer/app.py", call) == ["unowned task"]
    assert found("src/tapestry/controller/queue.py", call) == []
    assert found("tests/unit/test_queue.py", call) == []


def test_a_task_of_a_group_is_owned() -> None:
    assert found("src/tapestry/syncer/app.py", "group.create_task(f())") == []


@pytest.mark.parametrize("path", ["src/tapestry/controller/queue.py", "tests/unit/test_queue.py"])
@pytest.mark.parametrize("call", ["asyncio.gather(f(), g())", "asyncio.ensure_future(f())"])
def test_gather_is_not_allowed(path: str, call: str) -> None:
    assert found(path, call) == ["unowned task"]


@pytest.mark.parametrize("line", ["def reset_for_testing(): return 1", "client = None  # None for tests"])
def test_nothing_in_the_source_is_there_for_tests(line: str) -> None:
    assert found("src/tapestry/a.py", line) == ["test-only path"]
    assert found("tests/unit/a.py", line) == []


@pytest.mark.parametrize("call", ["time.sleep(delay)", "asyncio.sleep(0.1)", "sleep(2)"])
def test_a_test_does_not_sleep(call: str) -> None:
    assert found("tests/unit/a.py", call) == ["sleeping test"]
    assert found("src/tapestry/a.py", call) == []


def test_sleep_is_allowed_on_virtual_time() -> None:
    assert found("tests/unit/a.py", "asyncio.sleep(0)") == []
    virtual = "from tapestry.controller.testing.clock import run\n"
    assert found("tests/unit/a.py", virtual + "asyncio.sleep(60)") == []
    assert found("tests/unit/a.py", virtual + "time.sleep(60)") == ["sleeping test"]


@pytest.mark.parametrize(
    "stub",
    [
        "def f(): raise NotImplementedError('later')",
        "def f(): pass",
        'def f():\n    """Would delete everything at once."""\n    pass',
        "def f(): ...",
        "x = 1  # TODO: two",
    ],
)
def test_nothing_is_left_for_later(stub: str) -> None:
    assert found("src/tapestry/a.py", stub) == ["stub"]


def test_an_interface_has_no_bodies() -> None:
    text = """
        class Store(Protocol):
            def get(self) -> int: ...

        class Error(Exception): ...

        @typing.overload
        def f(x: int) -> int: ...
    """
    assert found("src/tapestry/a.py", text) == []


def test_a_test_must_be_able_to_fail() -> None:
    assert found("tests/unit/a.py", "def test_it():\n    f()") == ["assertless test"]


@pytest.mark.parametrize(
    "check",
    [
        "assert f()",
        "with pytest.raises(ValueError): f()",
        "assert_same(f(), 1)",
        "check_invariants()",
        "store.verify()",
    ],
)
def test_any_kind_of_check_will_do(check: str) -> None:
    assert found("tests/unit/a.py", f"async def test_it():\n    {check}") == []


@pytest.mark.parametrize(
    "recital",
    [
        'def reconcile(self, node):\n    """Reconcile the node."""',
        'def delete_pods(client: Client):\n    """Delete pods with the given client."""',
        'class NodeLease:\n    """A node lease."""',
        'def f():\n    """"""',
    ],
)
def test_a_docstring_does_not_recite(recital: str) -> None:
    assert found("src/tapestry/a.py", recital) == ["recital"]


def test_a_docstring_that_tells_something_stays() -> None:
    assert (
        found("src/tapestry/a.py", 'def reconcile(node):\n    """Reconcile the node, at most once a second."""') == []
    )


@pytest.mark.parametrize("words", ["# the remote cluster", "local_nodes = 1", "class RemotePod(Pod): x = 1"])
def test_the_two_sides_are_virtual_and_physical(words: str) -> None:
    assert found("src/tapestry/syncer/a.py", words) == ["glossary"]
    assert found("src/tapestry/local/a.py", words) == []


@pytest.mark.parametrize("path", ["/root/.cache", "see /work/main", "'/farm/x'"])
def test_paths_of_one_machine_do_not_stay(path: str) -> None:
    assert found("Makefile", path) == ["machine path"]


def test_paths_that_only_look_like_one_machine_stay() -> None:
    assert found("Makefile", "cd src/work/ && ls ./root/ ~/work/") == []


@pytest.mark.parametrize(
    "host", ["https://pypi.org/simple", "docker.io/library/busybox", "image: registry.k8s.io/pause"]
)
def test_registries_are_not_named(host: str) -> None:
    assert found("charts/values.yaml", host) == ["registry host"]


def test_a_documented_command_names_the_test_that_runs_it() -> None:
    block = "```bash\nmake test\n```\n"
    marked = f"<!-- run by tests/e2e/test_readme.py -->\n\n{block}"
    assert found("README.md", block) == ["documented command"]
    assert found("README.md", marked) == ["documented command"]
    assert found("README.md", marked, **{"tests/e2e/test_readme.py": ""}) == []
    assert found("README.md", f"<!-- run by README.md -->\n{block}") == ["documented command"]
    assert found("README.md", "```python\nmake = 1\n```\n") == []


def test_commands_of_a_document_are_found() -> None:
    text = "# Start\n\n<!-- run by tests/x.py -->\n```bash\nmake up\nkubectl get pods\n```\nor\n```console\n$ ls\n```\n"
    assert command_blocks(text) == [
        CommandBlock(4, "tests/x.py", "make up\nkubectl get pods\n"),
        CommandBlock(9, None, "$ ls\n"),
    ]


def test_a_document_can_say_once_who_runs_its_commands() -> None:
    text = "<!-- commands run by tests/x.py -->\n```bash\na\n```\n<!-- run by .ci/run -->\n```bash\nb\n```\n"
    assert [block.runner for block in command_blocks(text)] == ["tests/x.py", ".ci/run"]


def test_a_document_says_what_its_commands_show() -> None:
    text = "```bash\nls\n```\n\n```text\na\nb\n```\nand\n```text\nc\n```\n"
    assert command_blocks(text) == [CommandBlock(1, None, "ls\n", "a\nb\n")]


def test_a_smell_says_where_it_is() -> None:
    assert [str(smell) for smell in smells({"src/a.py": "x = 1\n\ndef f(): pass\n"})] == [
        "src/a.py:3: stub: do it, or leave it out"
    ]


def test_alarms_count_and_never_judge() -> None:
    source = "try:\n    f()\nexcept Exception:\n    g()  # type: ignore[x]\n"
    lines = list(alarms({"src/a.py": source, "tests/a.py": "x = Mock()\n"}))
    assert "      4 src/a.py" in lines
    assert [line.split() for line in lines[-3:]] == [
        ["1", "broad", "excepts", "in", "src"],
        ["1", "type:", "ignore", "in", "src"],
        ["1", "mocks", "in", "tests"],
    ]


def test_complexity_counts_the_forks() -> None:
    text = (
        "def f(x):\n    if x:\n        return [y for y in x]\n    elif x is None:\n        while x: x()\n    return 1"
    )
    assert [complexity(function) for function in functions(ast.parse(text))] == [5]


def test_the_repository_is_read_without_what_git_ignores() -> None:
    files = repository(Path(__file__).parent.parent.parent)
    assert "tools/smells.py" in files
    assert not any(path.startswith(".venv/") for path in files)


@pytest.mark.parametrize(
    "code",
    ["def shown(x): return x", "class Rooms: x = 1", "def f(company): return company", "told = 1", "x.kept = 1"],
)
def test_names_use_no_retired_word(code: str) -> None:
    assert found("src/tapestry/a.py", code) == ["retired word"]


@pytest.mark.parametrize("path", ["tests/unit/asking.py", "tests/golden/with-wishes.yaml", "docs/customs.md"])
def test_file_names_use_no_retired_word(path: str) -> None:
    assert found(path) == ["retired word"]


@pytest.mark.parametrize("path", ["docs/guides/pods.md", "README.md", "src/tapestry/a.py"])
def test_texts_use_no_retired_word(path: str) -> None:
    assert found(path, "# The companions of a pod") == ["retired word"]
    assert found(path, "# Pods are told to end") == []


def test_names_of_tests_use_no_retired_word() -> None:
    assert found("tests/unit/a.py", "def test_pods_are_kept(): assert x") == ["retired word"]


def test_names_of_tests_are_short() -> None:
    long = "test_" + "_".join("abcdefghij")
    assert found("tests/unit/a.py", f"def {long}(): assert x") == ["long name"]
    assert found("tests/unit/a.py", f"def {long[:-2]}(): assert x") == []
    assert found("tests/unit/a.py", f"def {long[:-2].replace('test_', 'test_safety_rule_1_')}(): assert x") == []


def test_a_retired_word_inside_another_word_is_fine() -> None:
    assert found("src/tapestry/a.py", "metadata = headroom = 1") == []


def test_three_modules_do_not_define_one_name() -> None:
    others = {f"src/tapestry/kube/{name}.py": "def parse(): return 1" for name in "bc"}
    assert found("src/tapestry/kube/a.py", "def parse(): return 1", **others) == ["repeated name"]
    assert found("src/tapestry/apis/a.py", "def parse(): return 1", **others) == []


def test_each_module_may_install_its_controllers() -> None:
    others = {f"src/tapestry/kube/{name}.py": "def install(): return 1" for name in "bc"}
    assert found("src/tapestry/kube/a.py", "def install(): return 1", **others) == []


@pytest.mark.parametrize("text", ["Whether it is so.", "What came of it.", "How long to wait."])
def test_a_docstring_begins_with_a_noun_or_an_imperative(text: str) -> None:
    assert found("src/a.py", f'x = 1\n"""{text}"""') == ["docstring"]
    assert found("src/a.py", f'class A:\n    """{text}"""\n    x = 1') == ["docstring"]
    assert found("src/a.py", 'x = 1\n"""Seconds to wait."""') == []


@pytest.mark.parametrize("text", ["Handles API calls.", "Raised if it is late.", "Checks the pods."])
def test_a_docstring_is_not_in_the_third_person(text: str) -> None:
    assert found("src/a.py", f'class A:\n    """{text}"""\n    x = 1') == ["docstring"]
    assert found("tests/a.py", f'"""{text}"""') == ["docstring"]


@pytest.mark.parametrize("text", ["Handle API calls.", "Checks of pods.", "Limits of a server.", "Names."])
def test_a_plural_noun_may_begin_a_docstring(text: str) -> None:
    assert found("src/a.py", f'class A:\n    """{text}"""\n    x = 1') == []


MIRRORED = {"src/tapestry/kube/pods.py": "", "tests/unit/kube/test_pods.py": "", "src/tapestry/kube/__init__.py": ""}
ALONE = {"src/tapestry/kube/cel/types.py": "", "tests/unit/kube/cel/test_compiler.py": ""}


@pytest.mark.parametrize(
    ("files", "table", "messages"),
    [
        (MIRRORED, "", []),
        (ALONE, "", ["untested"]),
        (ALONE, '"kube/cel/types" = "tests/unit/kube/cel/test_compiler.py"', []),
        (ALONE, '"kube/cel" = "tests/unit/kube/cel/test_compiler.py"', []),
        (ALONE, '"kube/cel" = "tests/unit/kube/cel/test_parser.py"', ["table of tests"]),
        (MIRRORED, '"kube/pods" = "tests/unit/kube/test_pods.py"', ["table of tests"]),
    ],
)
def test_module_has_a_test_or_an_entry(files: dict[str, str], table: str, messages: list[str]) -> None:
    assert [smell.message.split(":")[0] for smell in smells({**files, "tests/mirror.toml": table})] == messages


CONTRACTS = """
[[tool.importlinter.contracts]]
source_modules = ["tapestry.kube", "tapestry.apis.names"]
forbidden_modules = ["asyncio"]

[[tool.importlinter.contracts]]
source_modules = ["tapestry.local.plans"]
forbidden_modules = ["aiohttp"]
"""


@pytest.mark.parametrize(
    ("path", "docstring", "messages"),
    [
        ("src/tapestry/kube/pods.py", "Pods. Pure.", []),
        ("src/tapestry/kube/__init__.py", "Pure functions on pods.", []),
        ("src/tapestry/apis/names.py", "Names.\n\nAll functions are pure.", []),
        ("src/tapestry/apis/names_of_pods.py", "Names. Pure.", ["unchecked purity"]),
        ("src/tapestry/local/plans.py", "Plans. Pure.", ["unchecked purity"]),
        ("src/tapestry/local/plans.py", "Users of pure functions.", []),
    ],
)
def test_a_pure_module_is_in_a_contract(path: str, docstring: str, messages: list[str]) -> None:
    assert found(path, f'"""{docstring}"""', **{"pyproject.toml": CONTRACTS}) == messages

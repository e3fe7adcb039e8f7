"""Tests of CEL compilation and cost limits. The tests of CRD rules compare results with Kubernetes."""

import time
from typing import Any

import pytest

from tapestry.kube.cel.compiler import compile_expression
from tapestry.kube.cel.errors import CompileError, CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.types import BOOL, DYN, INT, STRING, TypeUnifier, list_of, map_of, object_type, parse_type


def value(text: str, cost: int = 1_000_000, **variables: Any) -> Any:
    return compile_expression(text, dict.fromkeys(variables, DYN)).evaluate(variables, Meter(cost))


def test_compiled_expression_is_evaluated_repeatedly() -> None:
    program = compile_expression("x.size > 2", {"x": object_type("Thing", {"size": INT})})
    assert program.type == BOOL
    assert program.variable_names == {"x"}
    assert [program.evaluate({"x": {"size": size}}, Meter(100)) for size in (2, 3)] == [False, True]


def test_macro_variables_shadow_outer_variables() -> None:
    assert value("[1, 2].map(x, [x].map(x, x + 1)) == [[2], [3]] && x == 7", x=7)


def test_wrongly_typed_data_raises_evaluation_error() -> None:
    program = compile_expression("x.size > 2", {"x": object_type("Thing", {"size": INT})})
    for wrong in ({"size": "big"}, {"size": None}, 5, None, []):
        with pytest.raises(EvaluationError):
            program.evaluate({"x": wrong}, Meter(100))


@pytest.mark.parametrize(
    "text",
    [
        "x.all(a, x.all(b, x.all(c, x.all(d, true))))",
        "x.map(a, x.map(b, x.map(c, x)))",
        "'a'.replace('', s).replace('', s).replace('', s)",
        "[s].map(a, a + a)" + ".map(a, a + a)" * 40 + ".size() == 1",
        "[x].map(a, a + a)" + ".map(a, a + a)" * 40 + ".size() == 1",
        "x.exists(a, s.matches('(a*)*b'))",
        "s.matches('(a?){900}b')",
        "x.map(a, s).join(s).size() > 0",
        "[x.map(a, x.map(b, x))].all(y, y == y)",
        "'%s'.format([x.map(a, x.map(b, s))]) == ''",
        "x.map(a, x) in [x.map(a, x), x.map(b, x)]",
        "('%s' + '%s').format([x.map(a, s), x.map(a, s)]).size() > 0",
    ],
)
def test_expensive_expressions_exceed_their_cost(text: str) -> None:
    program = compile_expression(text, {"x": list_of(INT), "s": STRING})
    start = time.process_time()
    with pytest.raises(CostExceeded):
        program.evaluate({"x": list(range(1000)), "s": "a" * 10_000}, Meter(1_000_000))
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "1" + ")" * 5000,
        "[" * 5000,
        "!" * 4999 + "true ? " * 100,
        " + ".join(["1"] * 5000),
        "a" + ".a" * 5000,
        "-(" * 1000 + "1" + ")" * 1000,
        "true ? true : " * 2000 + "false",
    ],
)
def test_deeply_nested_expression_is_rejected(text: str) -> None:
    with pytest.raises(CompileError):
        compile_expression(text, {"a": DYN})


def test_long_chain_of_conditions_compiles() -> None:
    assert value(" && ".join(["x < 5"] * 2000), x=1) is True


def test_errors_show_line_and_position() -> None:
    with pytest.raises(CompileError) as caught:
        compile_expression("x > 1 &&\n  y", {"x": INT})
    assert str(caught.value) == ("ERROR: <input>:2:3: undeclared reference to 'y' (in container '')\n |   y\n | ..^")


def test_all_issues_are_reported_together() -> None:
    with pytest.raises(CompileError) as caught:
        compile_expression("a || b", {})
    assert str(caught.value).count("ERROR") == 2


def test_types_unify_by_substituting_variables() -> None:
    unifier = TypeUnifier()
    [items, item] = unifier.with_fresh_variables([parse_type("list(A)"), parse_type("A")])
    assert unifier.unify([items, item], [list_of(INT), INT])
    assert not unifier.unify([items, item], [list_of(INT), STRING])
    assert unifier.resolve(items) == list_of(INT)
    assert str(map_of(STRING, list_of(DYN))) == "map(string, list(dyn))"


def test_type_cannot_contain_itself() -> None:
    unifier = TypeUnifier()
    [item] = unifier.with_fresh_variables([parse_type("A")])
    assert not unifier.unify([item], [list_of(item)])

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.quantity import (
    ZERO,
    Format,
    Quantity,
    QuantityError,
    ResourceList,
    floored,
    parse_quantity,
    scaled_value,
    smallest_unit,
)

NANO = 1
MILLI = 10**6
WHOLE = 10**9

quantities = st.builds(Quantity, st.integers(-(10**24), 10**24), st.sampled_from(Format))
amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "example.com/gpu"]), quantities).map(ResourceList)


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0", 0),
        ("-0", 0),
        ("0.0Ki", 0),
        ("7n", 7 * NANO),
        ("7u", 7 * 10**3),
        ("100m", 100 * MILLI),
        ("1", WHOLE),
        ("+1", WHOLE),
        ("-1k", -(10**3) * WHOLE),
        ("2M", 2 * 10**6 * WHOLE),
        ("2G", 2 * 10**9 * WHOLE),
        ("2T", 2 * 10**12 * WHOLE),
        ("2P", 2 * 10**15 * WHOLE),
        ("2E", 2 * 10**18 * WHOLE),
        ("3Ki", 3 * 2**10 * WHOLE),
        ("3Mi", 3 * 2**20 * WHOLE),
        ("3Gi", 3 * 2**30 * WHOLE),
        ("3Ti", 3 * 2**40 * WHOLE),
        ("3Pi", 3 * 2**50 * WHOLE),
        ("3Ei", 3 * 2**60 * WHOLE),
        ("1e3", 10**3 * WHOLE),
        ("1E3", 10**3 * WHOLE),
        ("1e+3", 10**3 * WHOLE),
        ("1e-3", MILLI),
        ("12e6", 12 * 10**6 * WHOLE),
        ("1.3E+6", 13 * 10**5 * WHOLE),
        (".5", 500 * MILLI),
        ("5.", 5 * WHOLE),
        ("1.G", 10**9 * WHOLE),
        ("007", 7 * WHOLE),
        ("1.5Gi", 3 * 2**29 * WHOLE),
        ("100.035k", 100_035 * WHOLE),
        ("0.0005k", 500 * MILLI),
    ],
)
def test_every_notation_is_parsed(text: str, nano: int) -> None:
    assert parse_quantity(text).nano == nano


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "+", "-", ".", "-.", "Gi", "e3", ".m"),  # no digit
        *("1.1.M", "1+1", "--1", "1,5", "1_000", "0x10", "1 ", " 1", "1\n", "٣"),
        *("1i", "1K", "1ki", "1KI", "1mi", "1g", "1Mib", "1kk", "1am"),
        *("1e", "1e-", "1ee3", "1e3.5", "1e3k", "nan", "inf", "Infinity", "aoeu"),
    ],
)
def test_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1e100", "1e999999999", "-1E99999999999999999999", "9" * 100, "0." + "1" * 100_000])
def test_quantity_with_huge_exponent_is_rejected(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


def test_error_names_field_and_value() -> None:
    with pytest.raises(QuantityError, match=r"^spec\.x: '1 GB' is not a quantity; write .*1\.5Gi"):
        parse_quantity("1 GB", path="spec.x")
    with pytest.raises(QuantityError, match=r"^'1 GB' is not"):
        parse_quantity("1 GB")


def test_error_quotes_only_the_start() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity("x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("number", "text"), [(3, "3"), (1000, "1k"), (0, "0"), (0.5, "500m"), (-2.0, "-2"), (1e16, "10e15")]
)
def test_json_number_is_parsed_like_text(number: float, text: str) -> None:
    assert str(parse_quantity(number)) == text


@pytest.mark.parametrize("value", [True, None, float("nan"), float("inf"), {}, ["1"]])
def test_other_json_value_is_rejected(value: object) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("-0e3", "0"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("1.500", "1500m"),
        ("+01", "1"),
        ("1000k", "1M"),
        ("1000m", "1"),
        ("1001m", "1001m"),
        ("12345678", "12345678"),
        ("10", "10"),
        ("100000", "100k"),
        ("-1500", "-1500"),
        ("-3000000u", "-3"),
        ("1000E", "1000E"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1.2e3", "1200"),
        ("12e6", "12e6"),
        ("1e14", "100e12"),
        ("1e0", "1"),
        ("0.5e-1", "50e-3"),
        ("1e-9", "1e-9"),
        ("1Ki", "1Ki"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("2048Ki", "2Mi"),
        ("-2048Ki", "-2Mi"),
        ("1.5Ki", "1536"),
        ("1025Ki", "1025Ki"),
        ("0.5Ki", "512"),
        (".001Ki", "1024m"),
        (".000001Ki", "1024u"),
        ("1.1Ki", "1126400m"),
        ("100.035Ki", "102435840m"),
    ],
)
def test_canonical_form_uses_largest_suffix(text: str, canonical: str) -> None:
    assert str(parse_quantity(text)) == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("3.001n", "4n"),
        ("1.1E-9", "2e-9"),
        ("1e-99", "1e-9"),
        ("0.00000012345", "124n"),
        (".000000000001Ki", "2n"),
    ],
)
def test_fraction_of_nano_rounds_away_from_zero(text: str, canonical: str) -> None:
    assert str(parse_quantity(text)) == canonical


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1", Format.DECIMAL_SI),
        ("1E", Format.DECIMAL_SI),
        ("1Ki", Format.BINARY_SI),
        ("0Ki", Format.BINARY_SI),
        ("0.0009765625Ki", Format.BINARY_SI),
        ("0.0009765624Ki", Format.DECIMAL_SI),
        ("0.0000000000009Ki", Format.DECIMAL_SI),
        ("1e3", Format.DECIMAL_EXPONENT),
        ("1E3", Format.DECIMAL_EXPONENT),
    ],
)
def test_format_follows_the_suffix(text: str, form: Format) -> None:
    assert parse_quantity(text).format is form


def test_only_binary_quantities_are_capped() -> None:
    assert parse_quantity("8Ei").value() == parse_quantity("9223372036854775807Ki").value() == 2**63 - 1
    assert parse_quantity("-8Ei").value() == -(2**63 - 1)
    assert parse_quantity("12E").value() == 12 * 10**18


def test_sum_keeps_the_largest_suffix() -> None:
    assert str(parse_quantity("4Ei") + parse_quantity("4Ei").scaled(255)) == "1024Ei"
    assert str(parse_quantity("500E") + parse_quantity("500E")) == "1000E"


@given(quantities)
def test_canonical_form_round_trips(quantity: Quantity) -> None:
    parsed = parse_quantity(str(quantity))
    if quantity.format is not Format.BINARY_SI or abs(quantity.value()) < 2**63:
        assert parsed == quantity
    assert str(parsed) == str(parse_quantity(str(parsed)))


@given(quantities, quantities)
def test_quantities_compare_by_amount(a: Quantity, b: Quantity) -> None:
    assert (a < b) == (a.nano < b.nano)
    assert (a == b) == (a.nano == b.nano)
    assert max(a, b).nano == max(a.nano, b.nano)


def test_quantities_compare_across_formats() -> None:
    assert parse_quantity("1Gi") == parse_quantity("1073741824") == parse_quantity("1073741824e0")
    assert len({parse_quantity("1Ki"), parse_quantity("1024"), parse_quantity("1.024k")}) == 1
    assert parse_quantity("1G") < parse_quantity("1Gi")
    assert min(parse_quantity("1"), parse_quantity("999m")) == parse_quantity("999m")


def test_only_zero_is_false() -> None:
    assert not parse_quantity("0Gi")
    assert parse_quantity("-1n")


@given(quantities, quantities)
def test_subtraction_undoes_addition(a: Quantity, b: Quantity) -> None:
    assert a + b - b == a


@pytest.mark.parametrize(
    ("sum_", "text"),
    [
        (parse_quantity("1Gi") + parse_quantity("1024M"), "2048576Ki"),
        (parse_quantity("1Gi") + parse_quantity("1Mi"), "1025Mi"),
        (parse_quantity("0") + parse_quantity("1Gi"), "1Gi"),
        (ZERO - parse_quantity("1Gi"), "-1Gi"),
        (parse_quantity("1") - parse_quantity("100m"), "900m"),
        (parse_quantity("1e3") + parse_quantity("1k"), "2e3"),
    ],
)
def test_sum_has_format_of_first_nonzero(sum_: Quantity, text: str) -> None:
    assert str(sum_) == text


@pytest.mark.parametrize(
    ("text", "by", "expected"),
    [
        ("10", Fraction(60, 100), "6"),
        ("1Gi", Fraction(1, 2), "512Mi"),
        ("7", 0, "0"),
        ("7", 3, "21"),
        ("1", Fraction(1, 3), "333333333n"),
        ("-1n", Fraction(1, 2), "-1n"),
    ],
)
def test_scaling_is_exact_and_rounds_down(text: str, by: int | Fraction, expected: str) -> None:
    assert str(parse_quantity(text).scaled(by)) == expected


@given(quantities.filter(lambda quantity: quantity >= ZERO), st.integers(0, 100))
def test_percentage_and_rest_never_exceed_total(idle: Quantity, percent: int) -> None:
    part = idle.scaled(Fraction(percent, 100))
    rest = idle.scaled(Fraction(100 - percent, 100))
    assert ZERO <= part <= idle
    assert idle.nano - 1 <= (part + rest).nano <= idle.nano


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [
        ("1", 1, 1000),
        ("1m", 1, 1),
        ("1500m", 2, 1500),
        ("1n", 1, 1),
        ("-1500m", -2, -1500),
        ("-1n", -1, -1),
        ("1Ki", 1024, 1024000),
    ],
)
def test_integer_values_round_away_from_zero(text: str, value: int, milli: int) -> None:
    assert parse_quantity(text).value() == value
    assert parse_quantity(text).milli_value() == milli


@pytest.mark.parametrize(
    ("resource", "unit"),
    [
        ("cpu", "1m"),
        ("requests.cpu", "1m"),
        ("limits.cpu", "1m"),
        ("memory", "1"),
        ("ephemeral-storage", "1"),
        ("pods", "1"),
        ("nvidia.com/gpu", "1"),
        ("example.com/cpu", "1"),
        ("attachable-volumes-csi-x", "1"),
        ("hugepages-2Mi", "2Mi"),
        ("hugepages-1Gi", "1Gi"),
        ("hugepages-many", "1"),
        ("hugepages-0", "1"),
    ],
)
def test_each_resource_has_a_smallest_unit(resource: str, unit: str) -> None:
    assert smallest_unit(resource) == parse_quantity(unit)


@pytest.mark.parametrize(
    ("resource", "amount", "expected"),
    [
        ("cpu", "1.2345", "1234m"),
        ("cpu", "999u", "0"),
        ("memory", "1500m", "1"),
        ("memory", "1.5Gi", "1536Mi"),
        ("nvidia.com/gpu", "1.9", "1"),
        ("nvidia.com/gpu", "0.9", "0"),
        ("pods", "110", "110"),
        ("hugepages-2Mi", "5Mi", "4Mi"),
    ],
)
def test_flooring_rounds_down_to_the_unit(resource: str, amount: str, expected: str) -> None:
    assert str(floored(resource, parse_quantity(amount))) == expected


@given(st.sampled_from(["cpu", "memory", "pods", "a.b/c", "hugepages-2Mi"]), quantities)
def test_flooring_removes_less_than_one_unit(resource: str, amount: Quantity) -> None:
    left = floored(resource, amount)
    assert ZERO <= amount - left < smallest_unit(resource)
    assert floored(resource, left) == left


def test_missing_resource_is_zero() -> None:
    idle = ResourceList.parse({"cpu": "1"})
    assert idle["memory"] == ZERO
    assert "memory" not in idle
    assert idle.get("memory") is None


def test_idle_is_allocatable_minus_requests() -> None:
    allocatable = ResourceList.parse({"cpu": "4", "memory": "8Gi", "pods": 110})
    requests = ResourceList.parse({"cpu": "4500m", "memory": "1Gi", "example.com/gone": "1"})
    left = allocatable - requests
    assert left.texts() == {"cpu": "-500m", "memory": "7Gi", "pods": "110", "example.com/gone": "-1"}
    assert left.at_least_zero().texts() == {"cpu": "0", "memory": "7Gi", "pods": "110", "example.com/gone": "0"}


def test_larger_is_taken_per_resource() -> None:
    init = ResourceList.parse({"cpu": "2", "memory": "1Gi"})
    run = ResourceList.parse({"cpu": "500m", "memory": "2Gi", "pods": "1"})
    assert init.larger(run).texts() == {"cpu": "2", "memory": "2Gi", "pods": "1"}


def test_amounts_are_floored_by_their_unit() -> None:
    lent = ResourceList.parse({"cpu": "1.23456", "nvidia.com/gpu": "2.5", "memory": "10"})
    assert lent.floored().texts() == {"cpu": "1234m", "nvidia.com/gpu": "2", "memory": "10"}


@given(amounts, amounts)
def test_addition_is_commutative_and_reversible(a: ResourceList, b: ResourceList) -> None:
    assert a + b == b + a
    left = a + b - b
    assert all(left[name] == a[name] for name in left | a)


@given(amounts, amounts)
def test_arithmetic_does_not_change_operands(a: ResourceList, b: ResourceList) -> None:
    before = dict(a), dict(b)
    a + b, a - b, a.larger(b), a.at_least_zero(), a.floored(), a["never seen"]
    assert (dict(a), dict(b)) == before


def test_missing_resource_list_is_empty() -> None:
    assert ResourceList.parse(None) == {}


def test_invalid_amount_is_named_by_path() -> None:
    with pytest.raises(QuantityError, match=r"^status\.allocatable\[cpu\]: 'lots' is not a quantity"):
        ResourceList.parse({"pods": "1", "cpu": "lots"}, "status.allocatable")


@given(
    st.lists(st.dictionaries(st.sampled_from(["cpu", "memory", "pods"]), st.sampled_from(["1", "500m", "1Gi", "0"])))
)
def test_total_is_the_sum_of_parts(texts: list[dict[str, str]]) -> None:
    parts = [ResourceList.parse(each) for each in texts]
    summed = sum(parts, ResourceList())
    assert ResourceList.total(parts) == summed
    assert ResourceList.total(parts).texts() == summed.texts()


@pytest.mark.parametrize(("part", "whole", "expected"), [(3, 10, 3), ("30%", 10, 3), ("25%", 10, 3), ("0%", 10, 0)])
def test_scaled_percentage_is_rounded_up(part: int | str, whole: int, expected: int) -> None:
    assert scaled_value(part, whole, math.ceil) == expected

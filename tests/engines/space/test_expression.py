from __future__ import annotations

import pytest

from autotune.base.errors import BadInput
from autotune.engines.expression import (
    Namespace,
    Unbounded,
    check,
    evaluate,
    fill,
    fill_value,
    names,
)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "(1).__class__",
        "args.__init__",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "open('f')",
        "args.get('x')",
        "a = 1",
        "1 +",
        "f'{a}'",
        "2 ** 99999999",
        "tp is 8",
        r"'\d' == tp",
        "1 << 9999999999",
        "range(10 ** 10)",
        "[0] * 2000000000",
        "(1, 2) + (3,)",
        "min([1, 2])",
        "f'{tp:99999999999}'",
        "'{:99999999999}'.format(tp)",
        "(" * 100_000 + "1" + ")" * 100_000,
        "-" * 100_000 + "1",
        "1" + " + 1" * 100_000,
    ],
    ids=lambda text: text[:30],
)
def test_refuses_everything_but_plain_expressions(text: str) -> None:
    with pytest.raises(ValueError, match=r"expression|called|leading|list"):
        check(text)


@pytest.mark.parametrize(
    "text",
    [
        "'a' * 2000000000",
        "2000000000 * 'a'",
        "b'a' * tp",
        "('a' + 'b') * tp * 99999999",
        "args.given * 2000000000",
        "'%2000000000d' % tp",
        "'%*d' % args.given",
        "b'%2000000000d' % tp",
        "long + long",
        "many * many",
        "tp * many * many * many",
    ],
)
def test_what_would_grow_without_bound_is_refused_when_it_is_evaluated(text: str) -> None:
    scope = {
        "tp": 8,
        "args": Namespace({"given": [2000000000, 1]}),
        "long": "a" * 60_000,
        "many": 2**3000,
    }
    with pytest.raises(Unbounded, match="expression") as refused:
        evaluate(check(text), scope)
    assert isinstance(refused.value, BadInput)
    assert isinstance(refused.value, ValueError), "malformed, as any other value of the wrong kind"


def doubled(template: str, times: int) -> str:
    value = "a"
    for _ in range(times):
        value = fill(template, {"value": value})
    return value


@pytest.mark.parametrize("template", ["{value}{value}", "{value + value}"])
def test_values_that_double_from_knob_to_knob_end(template: str) -> None:
    assert doubled(template, 3) == "a" * 8
    with pytest.raises(Unbounded):
        doubled(template, 64)


def test_sees_knobs_and_namespaces() -> None:
    scope = {"tp": 4, "dp": 2, "model": Namespace({"sparse": True, "deep": {"x": 3}})}
    assert evaluate("tp * dp == 8 and model.sparse", scope) is True
    assert evaluate("model.deep.x if tp > 2 else 0", scope) == 3
    assert evaluate("max(tp, dp) // 2 in (2, 3)", scope) is True
    assert names("tp * dp == 8 and model.sparse") == {"tp", "dp", "model"}


def test_what_is_not_there_is_none() -> None:
    args = Namespace({})
    assert evaluate("args.nothing is None and args.nothing != 3", {"args": args}) is True


def test_templates_keep_a_single_value_s_type() -> None:
    assert fill_value("{tp * 2}", {"tp": 4}) == 8
    assert fill_value("n={tp}", {"tp": 4}) == "n=4"
    assert fill_value(True, {}) is True
    assert fill("{tp}x{dp}", {"tp": 4, "dp": 2}) == "4x2"

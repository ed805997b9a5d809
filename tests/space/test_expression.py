from __future__ import annotations

import pytest

from autotune.space.expression import Namespace, check, evaluate, fill, fill_value, names


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
    ],
)
def test_refuses_everything_but_plain_expressions(text: str) -> None:
    with pytest.raises(ValueError, match=r"expression|called|leading"):
        check(text)


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

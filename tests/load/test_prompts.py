"""What random prompts say: lengths, shared beginnings, and what they are made from."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.requests import Requests
from autotune.load.tokenizers import Approximate, FileTokenizer, Tokenizer
from autotune.load.workloads import Prefix, load_workload
from tests.load.tokenizer_files import byte_level, byte_pairs, whole_words

KEY = PromptKey("w", 0, 0)
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module", params=[byte_pairs, byte_level, whole_words])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> FileTokenizer:
    return FileTokenizer.load(request.param(tmp_path_factory.mktemp("tokenizer")))


def requests(
    lengths: list[int],
    groups: list[int] | None = None,
    prefix: int = 0,
    contents: tuple[Any, ...] = (),
) -> Requests:
    n = len(lengths)
    group = np.array(groups if groups is not None else [-1] * n)
    return Requests(np.array(lengths), np.full(n, 4), np.zeros(n), group, prefix, n, contents)


def prompts(made: list[bytes]) -> list[Any]:
    bodies = [json.loads(body) for body in made]
    return [
        body["messages"][0]["content"] if "messages" in body else body["prompt"] for body in bodies
    ]


@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=5), seed=st.integers(0, 2**31))
def test_text_has_the_length_asked_for(tokenizer: FileTokenizer, lengths: list[int], seed: int):
    made = prompts(
        Prompts("m", CHAT, tokenizer=tokenizer).bodies(requests(lengths), PromptKey("w", 0, seed))
    )
    assert [tokenizer.count(text) for text in made] == pytest.approx(lengths, rel=0.01)


def test_long_text_has_the_length_asked_for(tokenizer: FileTokenizer):
    (text,) = prompts(Prompts("m", CHAT, tokenizer=tokenizer).bodies(requests([30_000]), KEY))
    assert tokenizer.count(text) == 30_000


@pytest.mark.parametrize("tokenizer_or_none", [None, Approximate()])
def test_without_a_tokenizer_a_word_stands_for_a_token(tokenizer_or_none: Tokenizer | None):
    made = prompts(Prompts("m", CHAT, tokenizer=tokenizer_or_none).bodies(requests([7, 9]), KEY))
    assert [len(text.split()) for text in made] == [7, 9]


def test_completions_take_ids_unless_text_is_asked_for(tokenizer: FileTokenizer):
    ids, text = (
        prompts(Prompts("m", tokenizer=tokenizer, as_text=as_text).bodies(requests([20]), KEY))[0]
        for as_text in (False, True)
    )
    assert len(ids) == 20
    assert all(isinstance(token, int) for token in ids)
    assert tokenizer.count(text) == 20
    assert text == prompts(Prompts("m", CHAT, tokenizer=tokenizer).bodies(requests([20]), KEY))[0]


@given(
    prefix=st.integers(1, 60),
    own=st.integers(30, 60),
    groups=st.lists(st.integers(0, 3), min_size=2, max_size=8),
    seed=st.integers(0, 2**31),
    as_text=st.booleans(),
)
def test_only_the_prefix_is_shared_and_only_within_a_group(
    tokenizer: FileTokenizer, prefix: int, own: int, groups: list[int], seed: int, as_text: bool
):
    asked = requests([prefix + own] * len(groups), groups, prefix)
    key = PromptKey("w", 0, seed)
    made = prompts(Prompts("m", tokenizer=tokenizer, as_text=as_text).bodies(asked, key))
    tokens = [
        tokenizer.model.encode(one, add_special_tokens=False).ids if as_text else one
        for one in made
    ]
    assert [len(one) for one in tokens] == [prefix + own] * len(groups)
    for (a, one), (b, other) in itertools.combinations(enumerate(tokens), 2):
        alike = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        if groups[a] == groups[b]:
            assert prefix <= alike < prefix + 20
        else:
            assert alike < 20
        assert one[prefix:] != other[prefix:]


def test_prompts_are_made_from_the_key_alone():
    asked = requests([40] * 3, [0, 1, 0], 10)
    keys = [
        KEY,
        PromptKey("x", 0, 0),
        PromptKey("w", 1, 0),
        PromptKey("w", 0, 1),
        PromptKey("w", 0, 0, attempt=1),
    ]
    keys += [PromptKey("w", 0, 0, attempt=2), PromptKey("w", 0, 0, warm_up=True)]
    for maker in (Prompts("m"), Prompts("m", CHAT)):
        assert maker.bodies(asked, KEY) == maker.bodies(asked, PromptKey("w", 0, 0))
        made = [prompts(maker.bodies(asked, key)) for key in keys]
        split = [
            prompt.split() if isinstance(prompt, str) else prompt
            for several in made
            for prompt in several
        ]
        assert len({tuple(one[:10]) for one in split}) == 2 * len(made)  # two groups each
        assert len({tuple(one[10:20]) for one in split}) == 3 * len(made)


def test_the_first_attempt_s_prompts_stay_what_they_were():
    """Results that are compared over months must come from the same prompts."""
    asked = requests([5, 6], [0, 0], 3)
    assert prompts(Prompts("m").bodies(asked, PromptKey("shared-prefix", 0, 42))) == [
        [17580, 23115, 3129, 15259, 8899],
        [17580, 23115, 3129, 15596, 12047, 20571],
    ]


def test_contents_of_a_file_are_sent_in_the_endpoint_s_form():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    body = json.loads(Prompts("m", CHAT).bodies(requests([5], contents=(messages,)), KEY)[0])
    assert body["messages"] == messages
    assert prompts(Prompts("m").bodies(requests([2, 2, 2], contents=("Why?", [5, 6], None)), KEY))[
        :2
    ] == [
        "Why?",
        [5, 6],
    ]
    with pytest.raises(BadInput, match=r"messages for /v1/chat/completions"):
        Prompts("m").bodies(requests([5], contents=(messages,)), KEY)
    with pytest.raises(BadInput, match=r"token ids for /v1/completions"):
        Prompts("m", CHAT).bodies(requests([2], contents=([5, 6],)), KEY)


def test_a_workload_s_groups_reach_the_prompts(tmp_path: Path):
    workload = load_workload("random:40:1:12").model_copy(
        update={"prefix": Prefix(tokens=25, groups=3)}
    )
    made = prompts(Prompts("m").bodies(workload.draw(0, 0), KEY))
    assert len({tuple(prompt[:25]) for prompt in made}) == 3
    assert len({prompt[25] for prompt in made}) == 12

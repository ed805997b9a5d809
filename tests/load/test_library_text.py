"""Real text that Python brings along: the workloads ``prose`` and ``code``."""

import json

import numpy as np
import pytest

from autotune.base.errors import BadInput
from autotune.load.prefix_cache import expected_hit_rate
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.workloads import load_workload
from autotune.load.workloads.lengths import TextKind, documents, passages
from autotune.node.emulator.http import is_predictable, text_tokens


@pytest.mark.parametrize("kind", ["prose", "code"])
def test_passages_of_the_length_asked_for_no_two_alike(kind: TextKind):
    workload = load_workload(kind)
    requests = workload.draw(0, seed=3)
    texts = [str(text) for text in requests.contents]
    assert workload.has_text
    assert len(set(texts)) == len(texts) == 200
    assert 350 < np.median(requests.input_tokens) <= 512
    assert (requests.input_tokens + requests.output_tokens).max() <= workload.longest_request
    assert expected_hit_rate(requests) < 0.02
    assert all(
        text in document
        for text in texts[:5]
        for document in documents(kind)
        if text[:40] in document
    )
    assert texts == list(workload.draw(0, seed=3).contents)
    assert texts != list(workload.draw(0, seed=4).contents)
    assert kind in workload.lengths_source()


@pytest.mark.parametrize("kind", ["prose", "code"])
def test_their_continuation_can_be_guessed_and_that_of_random_words_not(kind: TextKind):
    texts = passages(kind, 512, 100, np.random.default_rng(1))
    assert np.mean([is_predictable(text_tokens(text)) for text in texts]) > 0.97
    random = load_workload("random:512:5:20").draw(0, 1)
    for as_text in (False, True):
        bodies = Prompts("m", as_text=as_text).bodies(random, PromptKey("r", 0, 1))
        sent = [json.loads(body)["prompt"] for body in bodies]
        assert not any(
            is_predictable(text_tokens(prompt) if as_text else prompt) for prompt in sent
        )
    assert not is_predictable(text_tokens("Why is the sky blue?"))


def test_more_than_there_is_is_refused():
    with pytest.raises(BadInput, match=r"100000 prompts of 512 tokens .* prose has"):
        passages("prose", 512, 100_000, np.random.default_rng(1))

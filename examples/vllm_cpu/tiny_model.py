"""Writes a tiny Qwen2 model with random weights: nothing it says means anything, and it costs a CPU
little.

    python tiny_model.py tiny --layers 4 --hidden 256

The folder is as transformers would write it: `config.json`, `model.safetensors` and a tokenizer, 42
MB with the default sizes. The tokenizer is BPE over ASCII, with one token for all other bytes, and
words such as " kabu". Every word begins with a blank, so that a row of tokens, written out, is read
as the same tokens again (unless a single letter follows the beginning of a word): clients that
count by token and by text mean the same load. One seed gives one model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HEAD = 64
"""Dimensions of an attention head."""

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"
BLANK = "Ġ"
"""How byte-level BPE writes a blank."""

END, OTHER = "<end>", "<other>"
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END,
    "unk_token": OTHER,
    "clean_up_tokenization_spaces": False,
    "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
}


def merges() -> Iterator[tuple[str, str]]:
    """What becomes a token when it stands side by side: a blank and a letter, that and another
    letter, and so on."""
    words, letters = [BLANK], CONSONANTS
    while True:
        pairs = list(product(words, letters))
        yield from pairs
        words = [left + right for left, right in pairs]
        letters = VOWELS if letters is CONSONANTS else CONSONANTS


def tokenizer(vocabulary: int) -> Tokenizer:
    ascii_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = [ascii_only.pre_tokenize_str(chr(byte))[0][0] for byte in range(128)]
    made = list(islice(merges(), vocabulary - len(tokens) - 2))
    tokens += [*(left + right for left, right in made), OTHER]
    built = Tokenizer(
        models.BPE({token: number for number, token in enumerate(tokens)}, made, unk_token=OTHER)
    )
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(name, special=True) for name in (OTHER, END)])
    return built


def config(asked: argparse.Namespace) -> dict[str, object]:
    heads = asked.hidden // HEAD
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": asked.vocabulary,
        "hidden_size": asked.hidden,
        "intermediate_size": 3 * asked.hidden,
        "num_hidden_layers": asked.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": asked.context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "eos_token_id": asked.vocabulary - 1,
        "dtype": "bfloat16",
    }


def weights(asked: argparse.Namespace) -> dict[str, np.ndarray]:
    random, hidden, wide = np.random.default_rng(asked.seed), asked.hidden, 3 * asked.hidden
    shapes = {
        "model.embed_tokens": (asked.vocabulary, hidden),
        "lm_head": (asked.vocabulary, hidden),
    }
    tensors = {"model.norm.weight": np.ones(hidden, dtype=np.float16)}
    for layer in (f"model.layers.{number}" for number in range(asked.layers)):
        shapes |= {f"{layer}.self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj": (wide, hidden) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj"] = (hidden, wide)
        tensors |= {
            f"{layer}.self_attn.{name}_proj.bias": np.zeros(hidden, dtype=np.float16)
            for name in "qkv"
        }
        norms = ("input_layernorm", "post_attention_layernorm")
        tensors |= {f"{layer}.{name}.weight": np.ones(hidden, dtype=np.float16) for name in norms}
    for name, shape in shapes.items():
        values = random.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[1])
        tensors[f"{name}.weight"] = values.astype(np.float16)
    return tensors


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Write a tiny Qwen2 model with random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help=f"a multiple of {HEAD}")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="257 to 200000 tokens")
    parser.add_argument("--context", type=int, default=8192, help="most tokens of a request")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    parser = options()
    asked = parser.parse_args()
    if asked.hidden < HEAD or asked.hidden % HEAD or asked.vocabulary not in range(257, 200_001):
        parser.error(f"--hidden must be a multiple of {HEAD}, --vocabulary 257 to 200000")
    if asked.layers < 1 or asked.context < 1:
        parser.error("--layers and --context must be at least 1")
    asked.folder.mkdir(parents=True, exist_ok=True)
    tokenizer(asked.vocabulary).save(str(asked.folder / "tokenizer.json"))
    about = {"config.json": config(asked), "tokenizer_config.json": TOKENIZER_CONFIG}
    for name, content in about.items():
        (asked.folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_file(weights(asked), asked.folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()

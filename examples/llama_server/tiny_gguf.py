"""Writes a tiny llama model with random weights: nothing it says means anything, and it costs a CPU
little.

    python tiny_gguf.py tiny.gguf --layers 4 --hidden 256

The tokenizer is byte-level BPE, as GPT-2's: 256 bytes, syllables such as "ka", and words made of
them. Its last token is the only special one. One seed gives one file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import gguf
import numpy as np

HEAD = 32
"""Dimensions of an attention head: one block of Q8_0, so that every row length is whole blocks."""

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"
SPACE = "Ġ"
"""How byte-level BPE writes a blank."""


def byte_characters() -> list[str]:
    """The character that stands for each byte, by value: printable ones for themselves, the others
    from U+0100 on.

    As in GPT-2's encoder (https://github.com/openai/gpt-2/blob/master/src/encoder.py,
    `bytes_to_unicode`).
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in itself else chr(next(others)) for byte in range(256)]


def joined() -> Iterator[tuple[str, str]]:
    """Pairs of tokens that make another: syllables, two of them, a blank before one or two."""
    syllables = ["".join(pair) for pair in product(CONSONANTS, VOWELS)]
    yield from product(CONSONANTS, VOWELS)
    yield from product(syllables, syllables)
    yield from ((SPACE, word) for word in syllables)
    yield from ((SPACE, a + b) for a, b in product(syllables, syllables))
    yield from ((SPACE + a, b + c) for a, b, c in product(syllables, syllables, syllables))


def add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    tokens, merges = byte_characters(), []
    for left, right in joined():
        if len(tokens) == vocabulary - 1:
            break
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    end = len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, "<end>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * end + [gguf.TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}\n{% endfor %}")


def add_architecture(writer: gguf.GGUFWriter, asked: argparse.Namespace) -> None:
    writer.add_context_length(asked.context)
    writer.add_embedding_length(asked.hidden)
    writer.add_block_count(asked.layers)
    writer.add_feed_forward_length(3 * asked.hidden)
    writer.add_head_count(asked.hidden // HEAD)
    writer.add_head_count_kv(asked.hidden // HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(asked.vocabulary)


def add_weights(writer: gguf.GGUFWriter, asked: argparse.Namespace) -> None:
    random, hidden = np.random.default_rng(asked.seed), asked.hidden
    wide = 3 * hidden
    shapes = {"token_embd": (asked.vocabulary, hidden), "output": (asked.vocabulary, hidden)}
    for layer in range(asked.layers):
        shapes |= {
            f"blk.{layer}.attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")
        }
        shapes |= {f"blk.{layer}.ffn_{name}": (wide, hidden) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down"] = (hidden, wide)
    for name, shape in shapes.items():
        values = random.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[1])
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    norms = [
        "output_norm",
        *(f"blk.{i}.{part}_norm" for i in range(asked.layers) for part in ("attn", "ffn")),
    ]
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, dtype=np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny llama model with random weights.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help=f"a multiple of {HEAD}")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="257 to a million tokens")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.hidden % HEAD or asked.vocabulary not in range(257, 1_000_001):
        parser.error(f"--hidden must be a multiple of {HEAD}, --vocabulary 257 to 1000000")
    writer = gguf.GGUFWriter(asked.file, "llama")
    writer.add_name("tiny")
    add_architecture(writer, asked)
    add_tokenizer(writer, asked.vocabulary)
    add_weights(writer, asked)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

"""Small tokenizers of three kinds, as ``tokenizer.json`` files made on the spot."""

import itertools
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    " ".join(words)
    for words in itertools.permutations(
        ["lengths", "of", "prompts", "are", "counted", "by", "it"], 4
    )
]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def byte_pairs(folder: Path) -> Path:
    """Byte-level byte-pair encoding, as GPT-2's: hundreds of words that are one token after a
    blank."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    made_up = [f" {a}{b}{c}" for a, b, c in itertools.product(LETTERS, "aeiou", "nrst")]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    model.train_from_iterator([*TEXT, *made_up * 2], trainer)
    return _saved(model, folder)


def byte_level(folder: Path) -> Path:
    """Nothing but bytes: no word is one token."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(
        [], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)
    )
    return _saved(model, folder)


def whole_words(folder: Path) -> Path:
    """Made-up words only: English ones are all the same token to it."""
    model = Tokenizer(models.WordLevel({f"w{i}": i for i in range(5000)}, unk_token="w0"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return _saved(model, folder)


def _saved(model: Tokenizer, folder: Path) -> Path:
    file = folder / "tokenizer.json"
    model.save(str(file))
    return file

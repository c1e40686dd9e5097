"""A byte tokenizer, for models that are too small for words."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

VOCAB, EOS = 272, 2


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer of three special tokens, every byte, and a few pairs of letters."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the theme of the thinner then anther"], trainer)
    return tokenizer

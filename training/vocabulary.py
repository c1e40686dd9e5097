"""The tokenizer: byte-level BPE, each digit a separate token, trained on our own text."""

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from training.chat import CHAT_TEMPLATE, END_TURN, PAD, SPECIALS, START, Passage, token_id
from training.mix import conversation


def train_tokenizer(size: int, chats: int, seed: int) -> Tokenizer:
    """A tokenizer with `size` entries, including the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(Random(seed), chats), trainer)
    start = token_id(tokenizer, START)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, start)]
    )
    return tokenizer


def _texts(rng: Random, chats: int) -> Iterable[str]:
    for _ in range(chats):
        item = conversation(rng)
        if isinstance(item, Passage):
            yield item.text
        else:
            for role, content in item.turns():
                yield f"{role}\n{content}"


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json in the layout of Hugging Face."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END_TURN,
        "pad_token": PAD,
        "add_bos_token": True,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

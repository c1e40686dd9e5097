"""Sampling parameters in a settings file. The engine checks them; here is what they mean to a person."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.api.errors import BadParams
from engine.api.params import FIELDS, SamplingParams
from minichat.settings.nearest import unknown

MEANINGS = {
    "temperature": "How daring the choice of a token is; 0 always takes the likeliest.",
    "top_k": "Choose among this many likeliest tokens only; 0 takes all.",
    "top_p": "Choose among the likeliest tokens that together reach this probability.",
    "min_p": "Leave out tokens less likely than this share of the likeliest one.",
    "repetition_penalty": "Above 1: tokens of the prompt and the reply become less likely.",
    "presence_penalty": "Above 0: tokens that the reply holds become less likely.",
    "frequency_penalty": "Above 0: the more often the reply holds a token, the less likely it becomes.",
    "logit_bias": "Pairs of a token's id and what is added to its logit, from -100 to 100.",
    "seed": "The same seed gives the same reply; without it the engine draws one.",
    "stop": "Texts that end the reply where they appear.",
    "stop_ids": "Ids of tokens that end the reply.",
    "min_tokens": "The reply does not end before this many tokens.",
    "max_tokens": "The most tokens of a reply; without it, as many as fit.",
    "logprobs": "How many of the likeliest tokens come with each token; without it, none.",
    "ignore_eos": "Go on after the model's own end of the reply.",
    "speculate": "Guess tokens ahead, which makes a reply faster and changes none of it.",
    "draft_tokens": "How many tokens are guessed at once; 0 guesses as many as pay.",
    "beams": "Hypotheses of a beam search, which draws nothing; 1 searches none.",
    "length_penalty": "Of beams: above 0 long replies win, below 0 short ones.",
    "early_stopping": 'Of beams: end when enough have ended (true), or only when none can win ("never").',
    "n": "Replies to one prompt.",
    "best_of": "Draw so many replies, and give the n likeliest of them.",
    "grammar": 'What a reply has to be: `{kind = "regex", text = "..."}`; or kind json, or choice.',
}


def read_params(
    values: Mapping[str, Any], start: SamplingParams, complain: Callable[[str, str], None]
) -> SamplingParams:
    """The parameters with these values; one that is wrong is complained about, and left as it was."""
    params = start
    for name, value in values.items():
        if name not in FIELDS:
            complain(name, unknown(name, FIELDS))
            continue
        try:
            params = params.changed(**{name: value})
        except BadParams as error:
            complain(name, str(error).removeprefix(f"{name}: "))
    return params

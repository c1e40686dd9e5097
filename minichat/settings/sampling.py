"""Sampling parameters in a settings file. The engine validates them; here are their descriptions."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.api.errors import BadParams
from engine.api.params import FIELDS, SamplingParams
from minichat.settings.nearest import unknown

MEANINGS = {
    "temperature": "Randomness of sampling; 0 always takes the likeliest token.",
    "top_k": "Sample from this many likeliest tokens only; 0 allows all.",
    "top_p": "Sample from the likeliest tokens that together reach this probability.",
    "min_p": "Exclude tokens less likely than this fraction of the likeliest one.",
    "repetition_penalty": "Above 1, tokens in the prompt or the reply become less likely.",
    "presence_penalty": "Above 0, tokens already in the reply become less likely.",
    "frequency_penalty": "Above 0, a token becomes less likely each time it occurs in the reply.",
    "logit_bias": "Pairs of a token id and a bias for its logit, from -100 to 100.",
    "seed": "Same seed, same reply (on a GPU except at near ties); if unset, the engine chooses one.",
    "stop": "Texts that end the reply.",
    "stop_ids": "Token ids that end the reply.",
    "min_tokens": "Minimum length of the reply in tokens.",
    "max_tokens": "Maximum length of the reply in tokens; if unset, as many as fit; 0 only reads the prompt.",
    "logprobs": "How many likeliest tokens to return with each token; if unset, none.",
    "logprob_token_ids": "With logprobs, token ids to return in place of the likeliest ones.",
    "prompt_logprobs": "How many likeliest tokens to return with each prompt token; if unset, none.",
    "pooling": "With max_tokens 0, the hidden states of the prompt to return: last or mean; if empty, none.",
    "ignore_eos": "Continue after the model's end-of-sequence token.",
    "speculate": "Speculative decoding: often makes a reply faster, never changes it.",
    "draft_tokens": "Tokens to draft per step; 0 adapts to what pays off.",
    "beams": "Hypotheses of a beam search, which does not sample; 1 turns it off.",
    "length_penalty": "Beam search: above 0 favors long replies, below 0 short ones.",
    "early_stopping": 'Beam search: end when enough have ended (true), or only when none can win ("never").',
    "n": "Number of replies to one prompt.",
    "best_of": "Sample this many replies and return the n likeliest.",
    "grammar": 'Form of the reply: `{kind = "regex", text = "..."}`; or kind json, choice or lark.',
    "allowed_token_ids": "Token ids that a reply may consist of; if unset, all.",
    "bad_words": "Texts that a reply must not contain, matched by their tokens.",
    "include_stop_str_in_output": "Whether a reply's text ends with the stop that ended it.",
}


def read_params(
    values: Mapping[str, Any], start: SamplingParams, report: Callable[[str, str], None]
) -> SamplingParams:
    """Apply the values to the parameters, in any order: one may require another.

    Report an invalid value and keep the previous one.
    """
    params, left = start, dict(values)
    for name in (name for name in values if name not in FIELDS):
        report(name, unknown(name, FIELDS))
        del left[name]
    while left:
        wrong: dict[str, BadParams] = {}
        for name, value in left.items():
            try:
                params = _changed(params, name, value)
            except BadParams as error:
                wrong[name] = error
        if len(wrong) == len(left):
            break
        left = {name: left[name] for name in wrong}
    else:
        return params
    for name, why in wrong.items():
        report(name, why.problem if why.field == name else f"conflicts with {why.field}: {why.problem}")
    return params


def _changed(params: SamplingParams, name: str, value: object) -> SamplingParams:
    changed = params.changed(**{name: value})
    if name == "grammar" and changed.grammar is not None:
        from engine.grammar.source import check  # a first frame needs no grammars

        check(changed.grammar)
    return changed

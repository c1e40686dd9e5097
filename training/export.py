"""The shipped folder: weights, configs, tokenizer and the model card."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.chat import END_TEXT, END_TURN, PAD, START, token_id
from training.evaluate import Likeness, Score
from training.model import Decoder
from training.vocabulary import save_tokenizer

GOALS = {
    "about": 0.97,
    "recall": 0.97,
    "instructions": 0.90,
    "reworded": 0.90,
    "numbers": 0.95,
    "stories": 0.98,
    "json": 0.995,
    "unknown": 0.96,
    "manners": 0.93,
    "files": 0.93,
}
MEANING = {
    "about": "paraphrased questions about minichat, with phrasings kept out of training",
    "recall": "questions about earlier statements in the chat; names, things and phrasings kept out",
    "instructions": "small tasks on words and lists kept out of training",
    "reworded": "the same, with phrasings kept out as well",
    "json": "one JSON object or list from a sentence, exact value",
    "numbers": "sums, comparing, counting, numbers as words; operands kept out",
    "stories": "the story ends, keeps its hero's name and subject; names and half of the phrasing kept out",
    "unknown": "the honest sentence, topics and half of the phrasing kept out",
    "manners": "greetings, thanks, goodbyes, phrases kept out",
    "files": "a message with a file or a pipe: the sentence that names it; requests kept out",
    "newcomers": "what newcomers type in their first minutes, a fixed list that no training text is written for",
    "asked": "one question for each fact, written from its answer alone, by someone who had not seen the training text; no training text is written for it",
    "care": "crises, danger, medical emergencies: sympathy and where to find help; wordings kept out",
    "distress": "distress, danger and alarms in few words, a fixed list by someone who had not seen the training text",
    "calm": "ordinary messages with words of the former, by the same person: a reply without emergency numbers",
    "ordinary": "messages with the words of a crisis that are none: the usual answer; wordings kept out",
    "cannot": "code, rewriting, poems, pictures: an honest refusal and an alternative; phrasings kept out",
    "languages": "a sentence in another language: the reply in that language, English only; sentences kept out",
    "lists": "lists and counts up to 30, of the requested length; lengths and phrasings kept out",
    "wishes": "an order to the program with a value: its key or option; phrasings kept out",
}


def save_model(model: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write config.json, generation_config.json and bf16 safetensors, as transformers stores a Llama."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    ids = {"bos_token_id": token_id(tokenizer, START), "pad_token_id": token_id(tokenizer, PAD)}
    ends = [token_id(tokenizer, END_TURN), token_id(tokenizer, END_TEXT)]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.model.embed_tokens.num_embeddings,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.eps,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "early_exit_layers": list(shape.exits),
        **ids,
        "eos_token_id": ends,
    }
    generation = {**ids, "eos_token_id": ends, "do_sample": True, "temperature": 0.7, "top_p": 0.95}
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", generation)
    weights = {
        name: tensor.to(torch.bfloat16).contiguous().cpu() for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def _write(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def save_pocket(model: Decoder, draft: Decoder, tokenizer: Tokenizer, folder: Path, most: int) -> int:
    """Write everything except the card. Return its bytes; raise if there are more than `most`."""
    save_model(model, tokenizer, folder)
    save_model(draft, tokenizer, folder / "draft")
    save_tokenizer(tokenizer, folder, model.shape.context)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > most:
        raise ValueError(
            f"{folder} has {size} bytes, but the limit is {most}; make the model or the vocabulary smaller"
        )
    return size


def parameters(model: Decoder) -> int:
    return sum(p.numel() for p in model.parameters())


def table(scores: dict[str, dict[str, Score]]) -> str:
    """Right answers by kind, one column per decoding method."""
    ways = list(scores)
    lines = [
        "| kind | questions | goal | " + " | ".join(ways) + " |",
        "|---|---|---|" + "---|" * len(ways),
    ]
    for kind, meaning in MEANING.items():
        goal = f"{GOALS[kind]:.1%}" if kind in GOALS else ""
        shares = " | ".join(
            f"{s[kind].share:.1%} of {s[kind].asked}" if kind in s else "-" for s in scores.values()
        )
        lines.append(f"| {kind} | {meaning} | {goal} | {shares} |")
    parsed = (
        f"{s['json'].parsed / s['json'].asked:.1%} of {s['json'].asked}" if "json" in s else "-"
        for s in scores.values()
    )
    lines.append(f"| json | the reply parses | 98% | {' | '.join(parsed)} |")
    return "\n".join(lines)


def likeness_table(likes: dict[str, Likeness], exits: tuple[int, ...]) -> str:
    """Held-out loss by kind, and agreement of each exit and the draft with the whole model."""
    lines = [
        "| kind | loss | " + " | ".join(f"exit {e}" for e in exits) + " | draft |",
        "|---|---|" + "---|" * (len(exits) + 1),
    ]
    for kind, like in likes.items():
        shares = " | ".join(f"{like.exits[e]:.1%}" for e in exits)
        lines.append(f"| {kind} | {like.loss:.4f} | {shares} | {like.draft:.1%} |")
    return "\n".join(lines)


def model_card(
    model: Decoder, draft: Decoder, scores: dict[str, dict[str, Score]], likes: dict[str, Likeness], made: str
) -> str:
    """The model card: shape, training, scores and limits."""
    shape = model.shape
    exits = ", ".join(map(str, shape.exits))
    return f"""# The built-in model of minichat

A language model with {parameters(model) / 1e6:.2f} million parameters, so that `minichat` can chat at once, without a download,
and so that the engine has a real model to run. It is a toy: it can talk about minichat and its engine, tell small stories, solve small
exercises and answer questions about earlier messages of the chat. It has no knowledge of the world.

- Shape: Llama, {shape.layers} layers, width {shape.hidden}, {shape.heads} query and {shape.kv_heads} key-value heads of {shape.head_dim}, MLP {shape.inner}, tied embeddings,
  {model.model.embed_tokens.num_embeddings} tokens (byte-level BPE, each digit alone), context {shape.context}, bf16.
- Exits: trained after layers {exits} (`early_exit_layers` in `config.json`), with the final norm and the head. In training,
  layers were skipped row by row, deeper layers more often.
- `draft/`: a draft of {parameters(draft) / 1e6:.2f} million parameters with the same tokenizer, distilled from the model.
- Start token `{START}`; a chat turn ends with `{END_TURN}`, a text with `{END_TEXT}`.

## How it was made

All text comes from the generators in `training/`, which were written for it; no data set was used. One command on one GPU:
`python -m training` ({made}).

## Held-out figures

No question below was seen in training: the generators of the training text exclude them. Checkers look for key terms or for the
exact text (`training/check.py`). Top-p is 0.95 at temperature 0.7. Each question of `recall` has a phrasing that is not in the
training text (a question, a frame such as "I have no memory of ...", or words around it; a test searches for them), with names and
most things kept out of training, too, and up to eight other subjects between the statement and the question. Between runs, phrasings
were added after a look at the wrong answers: patterns of the tests moved to training, and new ones were written for the tests.

{table(scores)}

Loss on the reference replies, and how often the most likely token of an exit or the draft is that of the whole model:

{likeness_table(likes, shape.exits)}

## What it cannot do

- It has no knowledge outside minichat: no people, places, science, code or news. It is trained to say so, but sometimes invents
  an answer.
- Sums: adding and subtracting up to 999, multiplying and dividing up to 100 and within 12 times 12. Beyond that it should say so, but may
  give a wrong number ("13*13" gives 199).
- It cannot look up statements in reverse: it finds the owner of a thing only in its own notes ("Ben likes tea, so tea will please Ben").
- One in twenty orders in unusual words fails ("begin madam with its final letter and proceed to its initial one"), and so do one in twenty questions
  about minichat. Of two questions in one message it may answer neither ("Explain quantum physics and top-p").
- An unknown thing whose name resembles a known one may get a wrong answer instead of an honest one.
- English only: it answers a message in another language with a sentence in that language that says so, sometimes in the wrong one.
  Its stories come from ten plots. It cannot work with files, and says so.
- In a crisis or a medical emergency it gives sympathy and emergency numbers, in other languages the emergency number. One in ten
  messages of distress in few words gets something else (`distress` above), more of those in unusual words (`care`), and one in seven
  ordinary messages with such words gets emergency numbers (`calm`). It is a toy and no help.
- It describes minichat as of the time the text was written. If the program differs, the program is right.
"""

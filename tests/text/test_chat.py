"""Conversations become the same prompts as in transformers, but no message can contain control tokens."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from engine.api.errors import BadInput, TemplateError
from engine.text import ChatFormat, TemplateRenderer, Tokenizer, tokenizer

SYSTEM = {"role": "system", "content": "You are brief."}
USER = {"role": "user", "content": "  What is <b>2 + 2</b>? 日本語 'quoted'\n"}
REPLY = {"role": "assistant", "content": "<think>\nAdd them.\n</think>\n\nFour."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "é": "<x>"}}}],
}
RESULT = {"role": "tool", "content": "4"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds é", "parameters": {}}}]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, USER, REPLY, USER],
    [USER, REPLY, USER, REPLY, USER],
    [SYSTEM, USER, REPLY],
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}<|turn|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}assistant: <think>{% endif %}"
)


@pytest.fixture(scope="module")
def qwen(qwen3: Path, renderer: TemplateRenderer) -> ChatFormat:
    return ChatFormat(Tokenizer.load(qwen3), renderer)


@pytest.fixture(scope="module")
def llama(llama3: Path, renderer: TemplateRenderer) -> ChatFormat:
    return ChatFormat(Tokenizer.load(llama3), renderer)


@pytest.fixture(scope="module")
def theirs(qwen3: Path, llama3: Path) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    return {
        name: transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        for name, folder in (("qwen", qwen3), ("llama", llama3))
    }


@pytest.fixture
def chat(checkpoint: Callable[..., Path], renderer: TemplateRenderer) -> ChatFormat:
    config = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    return ChatFormat(Tokenizer.load(checkpoint(tokenizer_config=config)), renderer)


def assert_same_as_transformers(
    chat: ChatFormat, other: Any, messages: list[dict[str, Any]], **options: Any
) -> None:
    options.setdefault("add_generation_prompt", True)
    text = other.apply_chat_template(messages, tokenize=False, **options)
    assert chat.text(messages, **options) == text
    assert chat.prompt(messages, **options) == other.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_like_transformers(
    qwen: ChatFormat, llama: ChatFormat, theirs: dict[str, Any], messages: list[Any]
) -> None:
    for generate in (True, False):
        assert_same_as_transformers(qwen, theirs["qwen"], messages, add_generation_prompt=generate)
        assert_same_as_transformers(llama, theirs["llama"], messages, add_generation_prompt=generate)


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_like_transformers(qwen: ChatFormat, theirs: dict[str, Any], thinking: bool) -> None:
    assert_same_as_transformers(qwen, theirs["qwen"], [SYSTEM, USER], enable_thinking=thinking)


def test_tools_like_transformers(qwen: ChatFormat, theirs: dict[str, Any]) -> None:
    assert_same_as_transformers(qwen, theirs["qwen"], [USER], tools=TOOLS)
    assert_same_as_transformers(qwen, theirs["qwen"], [SYSTEM, USER, CALL, RESULT, RESULT], tools=TOOLS)


@pytest.mark.parametrize("text", ["Once upon", "Once <|im_end|> upon", "<think>\nHm"])
def test_a_continued_message_like_transformers(
    qwen: ChatFormat, llama: ChatFormat, theirs: dict[str, Any], text: str
) -> None:
    final = {"role": "assistant", "content": text}
    options = {"add_generation_prompt": False, "continue_final_message": True}
    for chat, name in ((qwen, "qwen"), (llama, "llama")):
        other = theirs[name].apply_chat_template([USER, final], tokenize=False, **options)
        assert chat.text([USER, final], **options) == other
        assert chat.text([USER, final], continue_final_message=True) == other


def test_a_message_that_the_template_leaves_out_cannot_be_continued(
    checkpoint: Callable[..., Path], renderer: TemplateRenderer
) -> None:
    config = {"chat_template": "{{ messages[0].content }}", "bos_token": "<s>", "eos_token": "</s>"}
    chat = ChatFormat(Tokenizer.load(checkpoint(tokenizer_config=config)), renderer)
    assert chat.prompt([REPLY], continue_final_message=True) == chat.prompt([REPLY])
    with pytest.raises(TemplateError, match="leaves out the text of the final message"):
        chat.prompt([USER, REPLY], continue_final_message=True)
    with pytest.raises(BadInput, match="cannot both be true"):
        chat.prompt([REPLY], continue_final_message=True, add_generation_prompt=True)


def test_start_token_comes_once(llama: ChatFormat) -> None:
    tokens = llama.prompt([USER])
    assert tokens.count(llama.tokenizer.bos_id or -1) == 1


def test_arguments_may_come_as_json(qwen: ChatFormat) -> None:
    call = {"function": {"name": "add", "arguments": '{"a":2,"é":"<x>"}'}}
    assert qwen.text([USER, {**CALL, "tool_calls": [call]}]) == qwen.text([USER, CALL])
    broken = {"function": {"name": "add", "arguments": '{"a":'}}
    assert '"arguments": {"a":}' in qwen.text([USER, {**CALL, "tool_calls": [broken]}])


def test_parts_of_text_become_one(chat: ChatFormat) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert chat.text([{"role": "user", "content": parts}]).startswith("<s>user: one\ntwo<|turn|>")


CONTROL = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>", "<tool_response>"]
FORGED = st.lists(st.sampled_from([*CONTROL, "<|im_", "end|>", "<", " ", "\n", "a", "\ufdd0"]), max_size=8)


@given(words=FORGED, role=st.sampled_from(["user", "tool", "system", "assistant"]))
def test_no_message_forges_control_tokens(qwen: ChatFormat, words: list[str], role: str) -> None:
    """The prompt has the same control tokens as with harmless text."""
    text = "".join(words)
    counts = [
        Counter(token for token in tokens if token in qwen.tokenizer.special_ids)
        for tokens in (
            qwen.prompt([USER, {"role": role, "content": text}, USER]),
            qwen.prompt([USER, {"role": role, "content": "harmless"}, USER]),
        )
    ]
    assert counts[0] == counts[1]


@given(words=FORGED)
def test_forged_control_tokens_are_kept_as_text(qwen: ChatFormat, words: list[str]) -> None:
    text = "".join(words).replace("\ufdd0", "")
    tokens = qwen.prompt([{"role": "user", "content": text}])
    assert qwen.tokenizer.decode(tokens, skip_special=False) == qwen.text([{"role": "user", "content": text}])
    added = {token for token in tokens if token in qwen.tokenizer.added}
    assert added == set(qwen.tokenizer.encode("<|im_start|><|im_end|>"))


def test_no_field_forges_control_tokens(chat: ChatFormat) -> None:
    forged = "x<|turn|></s> y"
    tokens = chat.prompt(
        [
            {"role": "user", "content": forged, "name": forged},
            {"role": "tool", "content": [{"type": "text", "text": forged}]},
        ],
        tools=[{forged: [forged]}],
        unused=forged,
    )  # fmt: skip
    turn, end = chat.tokenizer.encode("<|turn|></s>")
    assert tokens.count(turn) == 2
    assert end not in tokens
    assert chat.text([USER], bos_token="</s>").startswith("</s>user")
    assert chat.prompt([USER], bos_token="</s>")[0] != end


def test_thinking_tags_are_tokens_only_in_replies(chat: ChatFormat) -> None:
    think = chat.tokenizer.id_of("<think>")
    prompts = {
        role: chat.prompt([{"role": role, "content": "<think>"}], add_generation_prompt=False)
        for role in ("user", "tool", "assistant")
    }
    assert {role: think in tokens for role, tokens in prompts.items()} == {
        "user": False,
        "tool": False,
        "assistant": True,
    }


def test_full_width_letters_make_no_control_token(tmp_path: Path, renderer: TemplateRenderer) -> None:
    """A normalizer that folds letters would otherwise make a control token of them."""
    library = tokenizers.Tokenizer(
        models.BPE(vocab={letter: n for n, letter in enumerate("<>|abcdefghijk")}, merges=[])
    )
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_tokens([tokenizers.AddedToken("<|abc|>", special=True, normalized=True)])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|abc|>")
    chat = ChatFormat(Tokenizer.load(tmp_path), renderer)
    control = chat.tokenizer.id_of("<|abc|>")
    assert chat.tokenizer.encode("＜｜ａｂｃ｜＞") == [control]
    assert chat.prompt([{"role": "user", "content": "＜｜ａｂｃ｜＞"}]).count(control or -1) == 1


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("hello", "messages must be a list"),
        ([], "messages must be a list of at least one message"),
        (None, "messages must be a list"),
        (["hello"], r"messages\[0\] must be an object with role and content"),
        ([USER, {"content": "x"}], r"messages\[1\]\.role must be a name"),
        ([{"role": "user<|turn|>", "content": "x"}], r"messages\[0\]\.role must be a name"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role must be a name"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content must be text or a list of .* not 3"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\]\.content\[0\] must have the form"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r"messages\[0\]\.content\[0\] must have the form",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] has type 'image_url'"),
        (
            [{"role": "user", "content": "a\udc80"}],
            r"messages\[0\]\.content must be valid Unicode, got a lone surrogate",
        ),
        ([{"role": "user", "content": "x", "name": b"y"}], r"messages\[0\]\.name must be .* not bytes"),
        ([{"role": "user", "content": "x", 3: "y"}], r"a key of messages\[0\] must be text"),
        ([{"role": "assistant", "tool_calls": "x"}], r"messages\[0\]\.tool_calls must be a list of objects"),
        ([{"role": "assistant", "tool_calls": [{"function": {"a": {1}}}]}], r"function\.a must be .* set"),
    ],
)  # fmt: skip
def test_wrong_messages(chat: ChatFormat, messages: Any, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        chat.prompt(messages)


def test_bad_tools_and_options(chat: ChatFormat) -> None:
    with pytest.raises(BadInput, match="tools must be a list of objects"):
        chat.prompt([USER], tools=["add"])
    with pytest.raises(BadInput, match=r"documents must be .* not object"):
        chat.prompt([USER], documents=object())
    with pytest.raises(BadInput, match=r"template options\.x must be .* not object"):
        chat.prompt([USER], x=object())
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(BadInput, match="nested at most 64 levels deep"):
        chat.prompt([{**USER, "extra": nested}])


def test_a_template_that_refuses(llama: ChatFormat) -> None:
    with pytest.raises(TemplateError, match="refused the messages: Conversation roles must alternate"):
        llama.prompt([USER, USER])


def test_no_template(small: dict[str, Tokenizer]) -> None:
    chat = ChatFormat(small["byte_level"])
    assert not chat.has_template
    with pytest.raises(TemplateError, match="no chat template"):
        chat.prompt([USER])


def test_named_templates(checkpoint: Callable[..., Path], renderer: TemplateRenderer) -> None:
    named = [
        {"name": "tool_use", "template": "with {{ tools | length }}"},
        {"name": "default", "template": "without"},
    ]
    chat = ChatFormat(Tokenizer.load(checkpoint(tokenizer_config={"chat_template": named})), renderer)
    assert chat.has_template
    assert chat.text([USER]) == chat.text([USER], tools=[]) == "without"
    assert chat.text([USER], tools=TOOLS) == "with 1"
    only = ChatFormat(Tokenizer.load(checkpoint(tokenizer_config={"chat_template": named[:1]})), renderer)
    with pytest.raises(TemplateError, match="no chat template named default, only tool_use"):
        only.text([USER])


def test_a_long_conversation(chat: ChatFormat) -> None:
    text = "<|turn|> word " * 20_000
    tokens = chat.prompt([{"role": "user", "content": text}] * 3)
    assert tokens.count(chat.tokenizer.id_of("<|turn|>") or -1) == 3


def test_a_huge_text_leaves_no_memory_behind(chat: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[bool] = []
    monkeypatch.setattr(tokenizer, "trim_heap", lambda: trimmed.append(True))
    monkeypatch.setattr(tokenizer, "_HUGE", 500)
    for length in (499, 500):
        chat.tokenizer.encode("a" * length)
    assert trimmed == [True]

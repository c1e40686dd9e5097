"""Every format of tool calls: whole and piece by piece, several calls, malformed ones, and the grammar."""

import json
import random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.server.reply_grammar import ToolCallRules, reply_grammar
from engine.server.tool_calls.formats import FORMATS, Style, reader, style
from engine.server.tool_calls.rules import Function
from tests.examples import examples
from tests.grammar.walks import walk
from tests.server.calls import cuts, read_all
from tests.server.tools.test_reply_grammar import accepts

TOWN: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["town"],
    "additionalProperties": False,
}
WEATHER = Function("weather", TOWN, True)
CLOCK = Function("clock", {"type": "object", "properties": {}, "additionalProperties": False}, True)
KOELN, NOW = ("weather", '{"town": "Köln", "days": 3}'), ("clock", "{}")

# Each format: a reply of one call, and one of two calls after text, or of two calls alone.
ONE: dict[Style, str] = {
    "qwen": '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln", "days": 3}}\n</tool_call>',
    "llama": '{"name": "weather", "parameters": {"town": "Köln", "days": 3}}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"town": "Köln", "days": 3}}]',
    "mistral-args": '[TOOL_CALLS]weather[ARGS]{"town": "Köln", "days": 3}',
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"town": "Köln", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek-v3.1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"town": "Köln", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "glm": (
        "<tool_call>weather\n<arg_key>town</arg_key>\n<arg_value>Köln</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ),
    "function-gemma": (
        "<start_function_call>call:weather{town:<escape>Köln<escape>,days:3}<end_function_call>"
    ),
    "gemma-4": '<|tool_call>call:weather{town:<|"|>Köln<|"|>,days:3}<tool_call|>',
    "qwen-xml": (
        "<tool_call>\n<function=weather>\n<parameter=town>\nKöln\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
    "tool-code": '```tool_code\nweather(town="Köln", days=3)\n```',
    "pythonic": '[weather(town="Köln", days=3)]',
    "harmony": (
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"town": "Köln", "days": 3}'
    ),
}
TWO: dict[Style, tuple[str, str]] = {
    "qwen": (f'Hm.\n{ONE["qwen"]}\n<tool_call>\n{{"name": "clock", "arguments": {{}}}}\n</tool_call>', "Hm."),
    "llama": (f'{ONE["llama"]}; {{"name": "clock", "parameters": {{}}}}', ""),
    "mistral": (f'Hm. {ONE["mistral"][:-1]}, {{"name": "clock", "arguments": {{}}}}]', "Hm."),
    "mistral-args": (f"Hm.{ONE['mistral-args']}[TOOL_CALLS]clock[ARGS]{{}}", "Hm."),
    "deepseek": (
        "Hm."
        + ONE["deepseek"].removesuffix("<｜tool▁calls▁end｜>")
        + "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```"
        + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Hm.",
    ),
    "deepseek-v3.1": (
        "Hm."
        + ONE["deepseek-v3.1"].removesuffix("<｜tool▁calls▁end｜>")
        + "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Hm.",
    ),
    "glm": (f"Hm.\n{ONE['glm']}\n<tool_call>clock\n</tool_call>", "Hm."),
    "function-gemma": (
        f"Hm.{ONE['function-gemma']}<start_function_call>call:clock{{}}<end_function_call>",
        "Hm.",
    ),
    "gemma-4": (
        f"<|channel>thought\nSo.<channel|>Hm.{ONE['gemma-4']}<|tool_call>call:clock{{}}<tool_call|>",
        "Hm.",
    ),
    "qwen-xml": (f"Hm.\n{ONE['qwen-xml']}\n<tool_call>\n<function=clock>\n</function>\n</tool_call>", "Hm."),
    "tool-code": ("Hm.\n" + ONE["tool-code"].removesuffix("\n```") + "\nclock()\n```", "Hm."),
    "pythonic": (ONE["pythonic"][:-1] + ", clock()]", ""),
    "harmony": (
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary<|message|>Hm.<|end|>"
        f"<|start|>assistant{ONE['harmony']}<|call|>"
        "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>",
        "Hm.",
    ),
}
MALFORMED: list[tuple[Style, str]] = [
    ("qwen", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call> so'),
    ("llama", '{"name": "weather", "parameters": 5}'),
    ("mistral", "[TOOL_CALLS] are made of JSON"),
    ("mistral", '[TOOL_CALLS][{"name": 5}]'),
    ("mistral-args", "[TOOL_CALLS]weather[ARGS]town"),
    ("deepseek", "<｜tool▁calls▁begin｜>none"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁call▁end｜>"),
    ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\nno\n```<｜tool▁call▁end｜>"),
    ("glm", "<tool_call>is a tag</tool_call>"),
    ("glm", "<tool_call>other\n<arg_key>a</arg_key></tool_call>"),
    ("function-gemma", "<start_function_call>weather{}<end_function_call>"),
    ("function-gemma", "<start_function_call>call:weather<end_function_call>"),
    ("gemma-4", "<|tool_call>weather{}<tool_call|>"),
    ("gemma-4", "<|channel>none"),
    ("qwen-xml", "<tool_call>\n<function weather>\n</function>\n</tool_call>"),
    ("qwen-xml", "<function=other>\n<parameter=a>\nb\n</parameter>\n</function>"),
    ("tool-code", "```tool_code\nprint(5)\n```"),
    ("tool-code", "```tool_code\nweather(5)\n``` so"),
    ("pythonic", "[see(page=5)] and"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "weather(town=5)"),
    ("harmony", "<|channel|>final"),
    ("harmony", "Plain text."),
]
AT = st.lists(st.integers(0, 10_000), max_size=12)
STYLES: tuple[Style, ...] = get_args(Style)


def rules(style: Style, *, must: bool = True, many: bool = True) -> ToolCallRules:
    return ToolCallRules(style, [WEATHER, CLOCK], must=must, many=many)


def read(style: Style, pieces: list[str], *, cut: bool = False) -> tuple[str, list[tuple[str, str]]]:
    return read_all(reader(style, [WEATHER, CLOCK]), pieces, cut=cut)


def test_every_format_has_its_examples() -> None:
    assert (
        set(ONE)
        == set(TWO)
        == set(FORMATS)
        == set(STYLES)
        == {style for style, _ in MALFORMED} | {"deepseek-v3.1"}
    )


class TestReading:
    @pytest.mark.parametrize("style", STYLES)
    def test_one_call(self, style: Style) -> None:
        assert read(style, [ONE[style]]) == read(style, [*ONE[style]]) == ("", [KOELN])

    @pytest.mark.parametrize("style", STYLES)
    @given(at=AT)
    def test_text_and_two_calls(self, style: Style, at: list[int]) -> None:
        text, plain = TWO[style]
        assert read(style, cuts(text, at)) == (plain, [KOELN, NOW])

    @pytest.mark.parametrize(("style", "text"), MALFORMED)
    @settings(max_examples=10)
    @given(at=AT)
    def test_what_is_no_call_stays_text(self, style: Style, text: str, at: list[int]) -> None:
        assert read(style, cuts(text, at)) == (text, [])

    @pytest.mark.parametrize("style", STYLES)
    @examples(4)
    @given(data=st.data(), at=AT, cut=st.booleans())
    def test_any_text_reads_the_same_in_pieces(
        self, style: Style, data: st.DataObject, at: list[int], cut: bool
    ) -> None:
        """Also text that goes wrong anywhere: parts of a reply in any order, with other letters between."""
        whole = TWO[style][0]
        parts = st.tuples(st.integers(0, len(whole)), st.integers(0, 30)).map(lambda p: whole[p[0] :][: p[1]])
        text = "".join(data.draw(st.lists(parts | st.text("{}[]\"'\\<>=,:(a1 \n", max_size=4), max_size=8)))
        text = data.draw(st.sampled_from([text, whole[: len(text)] + text]))
        assert read(style, cuts(text, at), cut=cut) == read(style, [text], cut=cut)

    @pytest.mark.parametrize("style", STYLES)
    def test_a_call_that_is_cut_keeps_what_was_written(self, style: Style) -> None:
        text = ONE[style][: ONE[style].index("ln")]
        assert read(style, [text], cut=True) == ("", [("weather", '{"town": "Kö')])

    @pytest.mark.parametrize("style", STYLES)
    def test_arguments_come_while_they_are_written(self, style: Style) -> None:
        reading, text = reader(style, [WEATHER, CLOCK]), ONE[style]
        for letter in text[: text.index("ln")]:
            last = [*reading.push(letter)]
        assert [getattr(event, "text", "") for event in last] == ["ö"]

    @pytest.mark.parametrize("style", STYLES)
    def test_time_grows_with_the_text(self, style: Style) -> None:
        """Twice the text, letter by letter, takes about twice the operations."""
        once, twice = (operations(style, count) for count in (2000, 4000))
        assert twice < 2.2 * once


def operations(style: Style, letters: int) -> int:
    """Return how many characters a reader holds, summed over all pushes: what copying them would cost."""
    reading = reader(style, [WEATHER, CLOCK])
    total = 0
    for letter in ONE[style].replace("Köln", "K" * letters):
        reading.push(letter)
        total += len(reading._reading._text)
    return total


class TestValues:
    @pytest.mark.parametrize(
        ("style", "given", "expected"),
        [
            ("qwen", '{"a" :1,"b":[ ],"c":"\\u00e9\\ud83d\\ude00\\/"}', '{"a": 1, "b": [], "c": "é😀/"}'),
            ("qwen", '{"a": "x\ny\\q"}', '{"a": "x\\ny\\q"}'),
            ("function-gemma", '{a:[1,{b:true}],c:<escape>"\n<escape>,d:x}', None),
            ("pythonic", "a=[1, {'b': True}], c='\"\\n', d='x'", None),
        ],
    )
    def test_arguments(self, style: Style, given: str, expected: str | None) -> None:
        wrapped = {
            "qwen": f'<tool_call>{{"name": "f", "arguments": {given}}}</tool_call>',
            "function-gemma": f"<start_function_call>call:f{given}<end_function_call>",
            "pythonic": f"[f({given})]",
        }[style]
        same = '{"a": [1, {"b": true}], "c": "\\"\\n", "d": "x"}'
        for pieces in ([wrapped], [*wrapped]):
            assert read_all(reader(style), pieces) == ("", [("f", expected or same)])

    @examples(5)
    @given(
        value=st.dictionaries(
            st.text(min_size=1), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
        ),
        ascii_only=st.booleans(),
        at=AT,
    )
    def test_json_arguments_are_in_one_form(self, value: Any, ascii_only: bool, at: list[int]) -> None:
        text = f"[TOOL_CALLS]f[ARGS]{json.dumps(value, ensure_ascii=ascii_only, indent=1)}"
        assert read_all(reader("mistral-args"), cuts(text, at)) == (
            "",
            [("f", json.dumps(value, ensure_ascii=False))],
        )

    @examples(5)
    @given(text=st.text(), number=st.integers() | st.floats(allow_nan=False, allow_infinity=False), at=AT)
    def test_pythonic_values(self, text: str, number: float, at: list[int]) -> None:
        given = f"[f(a={text!r}, b={number!r}, c=[None, {{{text!r}: False}}])]"
        expected = {"a": text, "b": number, "c": [None, {text: False}]}
        assert read_all(reader("pythonic"), cuts(given, at)) == (
            "",
            [("f", json.dumps(expected, ensure_ascii=False))],
        )

    def test_glm_values_have_the_schema_s_type(self) -> None:
        function = Function("f", {"properties": {"s": {"type": "string"}, "n": {"type": "array"}}}, False)
        pairs = [("s", "5"), ("n", "[5]"), ("other", "true"), ("text", "a < b")]
        body = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in pairs)
        _, calls = read_all(reader("glm", [function]), [f"<tool_call>f{body}</tool_call>"])
        assert json.loads(calls[0][1]) == {"s": "5", "n": [5], "other": True, "text": "a < b"}

    @pytest.mark.parametrize("open", ["<tool_call>\n", ""])
    def test_qwen_xml_values_have_the_schema_s_type(self, open: str) -> None:
        function = Function("f", {"properties": {"s": {"type": "string"}, "n": {"type": "array"}}}, False)
        pairs = [
            ("s", "if a < b:\n\n  </p>\n"),
            ("n", "[5]"),
            ("yes", "True"),
            ("no", "null"),
            ("text", "a b"),
        ]
        body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
        reply = f"{open}<function=f>\n{body}</function>\n</tool_call>"
        for pieces in ([reply], [*reply]):
            plain, [(_, arguments)] = read_all(reader("qwen-xml", [function]), pieces)
            expected = {"s": pairs[0][1], "n": [5], "yes": True, "no": None, "text": "a b"}
            assert plain == "" and json.loads(arguments) == expected

    @pytest.mark.parametrize("text", ["[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{}", "[TOOL_CALLS] f{}"])
    def test_other_spellings_of_mistral(self, text: str) -> None:
        assert read_all(reader("mistral"), [text]) == ("", [("f", "{}")])

    def test_ids_of_mistral_have_nine_letters(self) -> None:
        [begun, *_] = reader("mistral").push('[TOOL_CALLS][{"name": "f", "arguments": {')
        assert len(getattr(begun, "id", "")) == 9 and getattr(begun, "id", "").isalnum()


class TestHarmony:
    @pytest.mark.parametrize("size", [1, 3, 1000])
    def test_channels(self, size: int) -> None:
        text = (
            "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant"
            "<|channel|>final<|message|>It is warm.<|return|>"
        )
        reading = reader("harmony")
        events = [e for n in range(0, len(text), size) for e in reading.push(text[n : n + size])]
        events += reading.flush()
        parts = dict.fromkeys(("ReasoningPiece", "ContentPiece"), "")
        for event in events:
            parts[type(event).__name__] += getattr(event, "text", "")
        assert parts == {"ReasoningPiece": "Let me think.", "ContentPiece": "It is warm."}


class TestGemma4:
    @pytest.mark.parametrize("size", [1, 3, 1000])
    def test_thoughts_are_reasoning(self, size: int) -> None:
        text = "<|channel>thought\nLet me <b>.<channel|>It is warm."
        reading = reader("gemma-4")
        events = [e for n in range(0, len(text), size) for e in reading.push(text[n : n + size])]
        events += reading.flush()
        parts = dict.fromkeys(("ReasoningPiece", "ContentPiece"), "")
        for event in events:
            parts[type(event).__name__] += getattr(event, "text", "")
        assert parts == {"ReasoningPiece": "Let me <b>.", "ContentPiece": "It is warm."}


class TestStyle:
    @pytest.mark.parametrize("expected", STYLES)
    def test_a_template_with_a_call_shows_its_format(self, expected: Style) -> None:
        example = {"llama": '{"name": n, "parameters": p}', "qwen": "<tool_call>"}.get(
            expected, ONE[expected]
        )
        assert style({"default": "{% if tools %}" + example + "{% endif %}"}) == expected
        assert style({"default": example}) is None


class TestGrammar:
    @pytest.mark.parametrize("many", [False, True])
    @pytest.mark.parametrize("style", STYLES)
    def test_required_replies_parse(self, style: Style, many: bool) -> None:
        grammar = reply_grammar(None, rules(style, many=many), thinking=False)
        assert grammar is not None
        complete = 0
        for seed in range(8):
            text, ended = walk(grammar, random.Random(seed), 0.9)
            plain, calls = read(style, [text], cut=not ended)
            if not ended:
                continue
            complete += 1
            assert plain == "" and calls and (many or len(calls) == 1), text
            for name, arguments in calls:
                given = json.loads(arguments)
                assert name == "clock" or isinstance(given.pop("town"), str)
                assert all(isinstance(value, int) for value in given.values()) and len(given) <= 1
        assert complete

    @pytest.mark.parametrize("style", STYLES)
    def test_accepted(self, style: Style) -> None:
        grammar, single = (
            reply_grammar(None, rules(style, many=many), thinking=False) for many in (True, False)
        )
        assert accepts(grammar, ONE[style]) and accepts(single, ONE[style])
        assert not accepts(grammar, "") and not accepts(grammar, "Hm.")
        assert not accepts(grammar, ONE[style].replace("weather", "climate"))
        assert not accepts(grammar, ONE[style].replace("3", "x"))

    @pytest.mark.parametrize("style", STYLES)
    def test_optional(self, style: Style) -> None:
        grammar = reply_grammar(None, rules(style, must=False), thinking=False)
        for text in ("", "It is warm.", ONE[style]):
            assert accepts(grammar, text), text
        assert not accepts(grammar, ONE[style].replace("3", "x"))

    @pytest.mark.parametrize("style", ["qwen-xml", "glm", "function-gemma", "gemma-4"])
    def test_a_string_may_hold_anything_but_its_end(self, style: Style) -> None:
        grammar = reply_grammar(None, rules(style), thinking=False)
        for text in ("", "a\n< <p></para\n</x>", '<|x"', "<<"):
            assert accepts(grammar, ONE[style].replace("Köln", text)), text

    def test_a_strict_schema_that_a_format_cannot_keep_is_refused(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}}
        strict = ToolCallRules("glm", [Function("f", schema, True)], must=True, many=True)
        with pytest.raises(BadParams, match="pattern is not supported"):
            reply_grammar(None, strict, thinking=False)

    def test_a_requested_format_or_calls(self) -> None:
        number = Grammar("json", '{"type": "integer"}')
        grammar = reply_grammar(number, rules("mistral", must=False), thinking=False)
        assert accepts(grammar, "12") and accepts(grammar, ONE["mistral"]) and not accepts(grammar, "x")

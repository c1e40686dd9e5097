"""Every command: its JSON form and back, what is refused, and who may send it."""

import json
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import commands, errors, wire
from engine.api.commands import (
    Accepted,
    Command,
    Sender,
    command_of,
    decode_command,
    decode_result,
    encode_command,
    encode_result,
    known_command,
)
from engine.api.errors import BadInput, BadParams, BadWire, EngineError, UnknownCommand
from engine.api.params import Grammar, GrammarKind, SamplingParams
from engine.api.speeds import Speeds
from engine.serving.handlers import HANDLERS
from tests.engine.ledger import ledger_engine

IDS = st.integers(0, 2**63 - 1)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple)
NAMES = st.text(max_size=100)
GRAMMARS = st.builds(Grammar, st.sampled_from(get_args(GrammarKind)), st.text("abc{}[]*", max_size=20))
CHANGES = st.dictionaries(st.sampled_from(["temperature", "top_p", "min_p"]), st.floats(0.1, 1), min_size=1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=3),
    grammar=st.none() | GRAMMARS,
)
FIELDS: dict[type[Command[Any]], dict[str, st.SearchStrategy[Any]]] = {
    commands.Submit: {
        "prompt": TOKENS,
        "params": PARAMS,
        "priority": st.integers(),
        "deadline": st.none() | st.floats(allow_nan=False),
        "salt": st.binary(max_size=20),
        "reply_prefix": TOKENS,
        "continues": st.booleans(),
    },
    commands.Fork: {"id": IDS, "params": st.none() | PARAMS},
    commands.Update: {"id": IDS, "changes": CHANGES},
    commands.Abort: {"ids": st.lists(IDS, max_size=5).map(tuple)},
    commands.Preempt: {"id": IDS},
    commands.Proceed: {"id": IDS},
    commands.SetSwitch: {"name": NAMES, "on": st.booleans()},
    commands.SetLatencyTarget: {"seconds": st.floats(0, 1e6)},
    commands.SetMaxSlowdown: {"factor": st.none() | st.floats(1, 1e6)},
    commands.SetQuantization: {"scheme": NAMES},
    commands.SetKvScheme: {"scheme": NAMES},
}
COMMANDS = [
    each
    for _, each in sorted(vars(commands).items())
    if isinstance(each, type) and issubclass(each, Command) and hasattr(each, "verb")
]
ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, EngineError)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)


@dataclass(frozen=True, slots=True)
class Record(Command[None]):
    """A command for code in the engine's own process only, which is the default."""

    path: str


class NoResult(Command):  # type: ignore[type-arg]
    pass


def sent(value: Any) -> Any:
    """Return the value as the other side of the wire reads it."""
    return json.loads(json.dumps(value, allow_nan=False))


class TestForm:
    @pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.verb)
    @given(data=st.data())
    def test_every_command_round_trips(self, kind: type[Command[Any]], data: st.DataObject) -> None:
        command = data.draw(st.builds(kind, **FIELDS.get(kind, {})))
        assert decode_command(sent(encode_command(command)), Sender.LIBRARY) == command

    @given(kind=st.sampled_from(ERRORS), text=st.text(), field=st.text(max_size=200), value=JSON)
    def test_every_error_round_trips(
        self, kind: type[EngineError], text: str, field: str, value: Any
    ) -> None:
        error = BadParams(field, text, value) if kind is BadParams else kind(text, field=field, value=value)
        back = wire.decode_error(sent(wire.encode_error(error)))
        assert (type(back), str(back), vars(back)) == (kind, str(error), vars(error))

    def test_a_reply_prefix_has_the_name_of_the_first_edition_on_the_wire(self) -> None:
        fields = {"prompt": [1], "params": {}, "said": [4, 5]}
        command = command_of("submit", fields, Sender.SCREEN)
        assert isinstance(command, commands.Submit) and command.reply_prefix == (4, 5)
        assert commands.fields_of(command)["said"] == [4, 5]

    def test_results_round_trip(self) -> None:
        speeds, accepted = Speeds(read=1e9, multiply=2.5e9), Accepted(3, 17)
        for kind, result in (
            (commands.MeasureSpeeds, speeds),
            (commands.Submit, accepted),
            (commands.Preempt, None),
        ):
            assert decode_result(kind, sent(encode_result(kind, result))) == result
        with pytest.raises(BadWire, match="the answer to submit: id must be a whole number, not 'x'"):
            decode_result(commands.Submit, {"id": "x", "prompt_tokens": 1})
        with pytest.raises(BadWire, match="the answer to preempt: must be null, not 5"):
            decode_result(commands.Preempt, 5)
        shot = ledger_engine().snapshot()
        back = decode_result(commands.GetSnapshot, sent(encode_result(commands.GetSnapshot, shot)))
        assert (back.model, back.blocks.size) == (shot.model, shot.blocks.size)

    def test_every_command_has_a_handler_and_a_result_type(self) -> None:
        assert set(COMMANDS) == HANDLERS.keys()
        with pytest.raises(TypeError, match=r"NoResult has no result type"):
            commands.result_of(NoResult)

    def test_a_verb_is_defined_once(self) -> None:
        with pytest.raises(TypeError, match=r"command 'preempt' already exists in engine\.api\.commands"):
            type("Preempt", (Command,), {})


class TestRefusals:
    @pytest.mark.parametrize(
        ("verb", "fields", "field", "words"),
        [
            ("set_switch", {"name": "graphs", "on": "yes"}, "on", "on must be true or false, not 'yes'"),
            ("set_switch", {"name": "graphs", "on": 1}, "on", "on must be true or false, not 1"),
            ("set_switch", {"name": "graphs"}, "on", "on is missing"),
            ("set_switch", {"name": "n" * 101, "on": True}, "name", "name must be a name of at most 100"),
            ("set_switch", {"name": "x", "on": True, "when": 1}, "when", "when is not a field of set_switch"),
            ("set_latency_target", {"seconds": -1.0}, "seconds", "seconds must be 0 or more, not -1.0"),
            ("set_max_slowdown", {"factor": 0.9}, "factor", "factor must be 1 or more, or null, not 0.9"),
            ("set_kv_scheme", {"scheme": None}, "scheme", "scheme must be a string, not None"),
            ("set_quantization", {"scheme": ["int8"]}, "scheme", "scheme must be a string"),
            ("cancel_quantization", {"now": True}, "now", "it has none"),
            ("preempt", {"id": 1.0}, "id", "id must be a whole number, not 1.0"),
            ("preempt", {"id": -1}, "id", "id must be a request id, not -1"),
            ("preempt", {"id": 10**5000}, "id", "id must be a request id, not '0x"),
            ("preempt", [], "", r"preempt: fields must be an object, not \[\]"),
            ("abort", {"ids": [1, "2"]}, "ids", "ids must be a whole number, not '2'"),
            ("abort", {"ids": [1, 2**63]}, "ids", "ids must be a request id, not 922"),
            ("update", {"id": 1, "changes": {}}, "changes", "changes must name at least one"),
            ("update", {"id": 1, "changes": []}, "changes", "changes must be an object"),
            ("fork", {"id": 1, "params": {"top_p": 7}}, "top_p", "top_p: must be a number"),
            ("fork", {"id": 1, "params": {"heat": 7}}, "heat", "heat: is not a sampling parameter"),
            ("submit", {"prompt": [1], "params": {}, "salt": "?"}, "salt", "salt must be base64"),
            ("submit", {"prompt": [1], "params": {}, "priority": 0.5}, "priority", "priority must be"),
            ("submit", {"prompt": [1], "params": {}, "said": ["x"]}, "said", "said must be a whole number"),
        ],
    )  # fmt: skip
    def test_an_error_names_the_bad_field(self, verb: str, fields: Any, field: str, words: str) -> None:
        with pytest.raises(BadInput, match=words) as caught:
            command_of(verb, fields, Sender.LIBRARY)
        assert caught.value.field == field

    @pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.verb)
    @given(data=st.data())
    def test_malformed_fields_raise_engine_errors_only(
        self, kind: type[Command[Any]], data: st.DataObject
    ) -> None:
        names = sorted(kind.wire_names.get(name, name) for name in commands.field_types(kind))
        fields = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys([*names, "else"], JSON)) | JSON)
        try:
            made = command_of(kind.verb, fields, Sender.LIBRARY)
        except EngineError as refusal:
            error = refusal
        else:
            assert type(made) is kind
            return
        assert str(error) and wire.decode_error(sent(wire.encode_error(error))).field == error.field

    @given(JSON)
    def test_malformed_frames_are_refused(self, value: Any) -> None:
        for asked in (value, {"v": 1, "command": value}, {"v": 1, "command": "preempt", "with": value}):
            with pytest.raises(EngineError):
                decode_command(asked, Sender.KEY)

    @given(JSON)
    def test_malformed_errors_are_refused(self, value: Any) -> None:
        for malformed in (value, {"v": 1, "kind": value}, {"v": 1, "kind": "BadInput", "text": value}):
            with pytest.raises(BadWire):
                wire.decode_error(malformed)


class TestWhoMaySend:
    def test_a_command_is_for_the_library_only_unless_its_class_allows_more(self) -> None:
        record = Record("/tmp/steps")
        assert decode_command(encode_command(record), Sender.LIBRARY) == record
        for sender in (Sender.SCREEN, Sender.KEY):
            with pytest.raises(UnknownCommand, match="there is no command 'record'"):
                decode_command(encode_command(record), sender)

    def test_a_key_may_not_submit_directly(self) -> None:
        for verb in ("submit", "fork", "warm"):
            known_command(verb, Sender.SCREEN)
            with pytest.raises(UnknownCommand):
                known_command(verb, Sender.KEY)

    def test_unknown_and_forbidden_commands_give_the_same_error(self) -> None:
        with pytest.raises(UnknownCommand, match=r"^there is no command 'dance'$"):
            known_command("dance", Sender.KEY)
        with pytest.raises(UnknownCommand, match=r"^there is no command 'warm'$"):
            known_command("warm", Sender.KEY)

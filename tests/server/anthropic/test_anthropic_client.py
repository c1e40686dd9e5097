"""Anthropic's own client on its routes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.lazily import lazy
from tests.server.anthropic.test_anthropic import body
from tests.server.anthropic.test_anthropic_errors import IMAGE, turn
from tests.server.conftest import KEY, MODEL, Served, saying, serving
from tests.server.tools.test_tools import CALL, QWEN

anthropic = lazy("anthropic")

Expected = Callable[..., str]


class TestOfficialClient:
    @pytest.fixture(scope="class")
    def claude(self, served: Served) -> Iterator[Any]:
        with anthropic.Anthropic(api_key=KEY, base_url=served.url, max_retries=0) as client:
            yield client

    def test_a_message_whole_and_streamed(self, claude: Any, expected: Expected) -> None:
        options: dict[str, Any] = body()
        whole = claude.messages.create(**options)
        with claude.messages.stream(**options) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        [block] = whole.content
        [last] = final.content
        assert block.type == last.type == "text"
        assert block.text == last.text == text == expected("hello")
        assert final.stop_reason == whole.stop_reason == "end_turn"
        assert final.usage.output_tokens == whole.usage.output_tokens
        count = claude.messages.count_tokens(model=MODEL, messages=options["messages"]).input_tokens
        assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == count

    def test_errors_are_of_its_classes(self, served: Served, claude: Any) -> None:
        with pytest.raises(anthropic.NotFoundError, match="does not exist") as missing:
            claude.messages.create(**body(model="claude"))
        assert missing.value.type == "not_found_error"
        with pytest.raises(anthropic.BadRequestError, match="supports only text"):
            claude.messages.create(**body() | turn([IMAGE]))
        with (
            anthropic.Anthropic(api_key="wrong", base_url=served.url, max_retries=0) as stranger,
            pytest.raises(anthropic.AuthenticationError),
        ):
            stranger.messages.create(**body())

    def test_structured_output(self, claude: Any) -> None:
        class Town(BaseModel):
            name: Literal["Ulm", "Bonn"]
            people: Literal[1, 2]

        options: dict[str, Any] = body() | {"max_tokens": 100}
        parsed = claude.messages.parse(**options, output_format=Town).parsed_output
        assert parsed.name in ("Ulm", "Bonn") and parsed.people in (1, 2)
        bad = {"format": {"type": "json_schema", "schema": {"type": "town"}}}
        for stream in (False, True):
            place = r"output_config\.format\.schema: is not a usable JSON schema"
            with pytest.raises(anthropic.BadRequestError, match=place):
                claude.messages.create(**options, output_config=bad, stream=stream)

    def test_its_loop_over_tools(self, tmp_path: Path) -> None:
        called: list[str] = []

        @anthropic.beta_tool
        def weather(town: str) -> str:
            """Return the weather of a town."""
            called.append(town)
            return "rain"

        text = f"I look.\n<tool_call>\n{CALL}\n</tool_call>"
        with (
            serving(saying(tmp_path, text, QWEN)) as served,
            anthropic.Anthropic(api_key=KEY, base_url=served.url, max_retries=0) as client,
        ):
            runner = client.beta.messages.tool_runner(
                **body(), tools=[weather], max_iterations=2, stream=True
            )
            finals = [stream.get_final_message() for stream in runner]
        assert [final.stop_reason for final in finals] == ["tool_use", "tool_use"]
        assert set(called) == {"Köln"}
        turns = [final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) for final in finals]
        assert turns[1] > turns[0] + len(text), "the second turn has the first one's call and result"

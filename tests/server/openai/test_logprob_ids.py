"""vLLM's logprob_token_ids on both routes, whole and streamed."""

from typing import Any

import httpx
import pytest

from tests.server.conftest import Served, user

IDS = [300, 7]


def test_a_chat_has_exactly_these_tokens(served: Served) -> None:
    pieces = [served.host.pieces([token])[0].decode(errors="replace") for token in IDS]

    def ask(stream: bool) -> Any:
        return served.openai.chat.completions.create(
            model="test-model", messages=user("hello"), max_tokens=4, logprobs=True, top_logprobs=1,
            stream=stream, extra_body={"logprob_token_ids": IDS},
        )  # fmt: skip

    entries = ask(False).choices[0].logprobs.content
    assert len(entries) == 4
    assert all([top.token for top in entry.top_logprobs] == pieces for entry in entries)
    parts = [chunk.choices[0].logprobs.content for chunk in ask(True) if chunk.choices[0].logprobs]
    assert [entry for part in parts for entry in part] == entries


def test_a_completion_has_the_sampled_token_with_them(served: Served) -> None:
    reply = served.openai.completions.create(
        model="test-model", prompt="hello", max_tokens=3, logprobs=0, extra_body={"logprob_token_ids": IDS}
    )
    found = reply.choices[0].logprobs
    assert found is not None and found.top_logprobs is not None and found.tokens is not None
    pieces = {served.host.pieces([token])[0].decode(errors="replace") for token in IDS}
    for token, top in zip(found.tokens, found.top_logprobs, strict=True):
        assert top.keys() == pieces | {token}


@pytest.mark.parametrize(
    "fields",
    [
        {"logprob_token_ids": [1]},
        {"logprobs": 0, "logprob_token_ids": [10**8]},
        {"logprobs": 0, "logprob_token_ids": ["a"]},
        {"logprobs": 0, "logprob_token_ids": [1], "echo": True, "max_tokens": 0},
    ],
)
def test_it_is_refused_by_name(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = client.post("/v1/completions", json={"prompt": "a", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("logprob_token_ids")

"""The times between tokens that /metrics counts."""

import pytest

from tests.server.conftest import dry, serving
from tests.server.exposition import families


@pytest.mark.parametrize("prompt", [[5, 6, 7], "a text"], ids=["ids", "text"])
def test_each_token_after_the_first_has_one(prompt: object) -> None:
    """Also if the engine has the first tokens before the server has heard that it accepts the request."""
    with serving(dry(rate=50_000)) as served, served.client() as client:
        for _ in range(20):
            asked = {"prompt": prompt, "max_tokens": 20, "ignore_eos": True}
            assert client.post("/v1/completions", json=asked).status_code == 200
        found = families(client.get("/metrics").text)
    assert found["minichat:generation_tokens_total"].value() == 20 * 20
    assert found["minichat:inter_token_latency_seconds"].value("_count") == 20 * 19

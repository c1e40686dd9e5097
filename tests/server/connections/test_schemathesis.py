"""The server against its own OpenAPI document: random requests of every kind, and no answer of 500."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.examples import TIMES
from tests.server.conftest import KEY, Served, dry, serving

ENDLESS = "/events"
KEYED = {"Authorization": f"Bearer {KEY}"}
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    with serving(dry(blocks=256, max_context=512)) as one:
        yield one


def test_no_request_breaks_the_server(small: Served) -> None:
    """Without the plugin of schemathesis, which would load with every run of pytest."""
    document = schemathesis.openapi.from_url(f"{small.url}/openapi.json", headers=KEYED)
    called = set()
    for found in document.get_all_operations():
        operation = found.ok()
        if operation.path == ENDLESS:
            continue

        @settings(
            max_examples=2 * TIMES,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def call(case: schemathesis.Case) -> None:
            called.add(f"{case.method} {case.path}")
            case.call_and_validate(headers=KEYED, checks=CHECKS, timeout=20)

        call()
    assert {"POST /v1/chat/completions", "POST /v1/completions", "POST /engine/replies"} <= called
    assert len(called) > 12

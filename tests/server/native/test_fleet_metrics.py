"""The metrics of several replicas, some of which do not run."""

from dataclasses import replace

from engine.fleet.merged import merged, replica_view
from tests.server.conftest import dry, serving
from tests.server.exposition import families


def test_the_cache_is_that_of_the_replicas_that_run() -> None:
    """So its blocks times the share in use are the blocks in use."""
    with serving(dry()) as served:
        one = served.host.snapshot()
        one = replace(one, blocks=replace(one.blocks, in_use=1024), host_size=64, host_in_use=8)
        stopped = replace(one.ended("it was stopped"), state="stopped")
        shots = (one, stopped, one)
        fleet = merged(shots, [replica_view(at, each, 0, silent=False) for at, each in enumerate(shots)])
        found = families(served.state.metrics.text(fleet))
    [(_, labels)] = found["minichat:cache_config_info"].samples
    assert dict(labels)["num_gpu_blocks"] == str(2 * one.blocks.size)
    assert dict(labels)["num_cpu_blocks"] == "128"
    assert found["minichat:kv_cache_usage_perc"].value() * 2 * one.blocks.size == 2 * 1024
    assert (fleet.host_in_use, fleet.host_size) == (16, 128)

"""Reports which blocks the prefix cache has, for a router that chooses between engines."""

from engine.api.commands import BlockNaming
from engine.api.events import BlockNamesChanged
from engine.kv import prefix
from engine.scheduling.scheduler import Scheduler
from engine.serving.adapters import AdapterRegistry


def start_reports(scheduler: Scheduler, adapters: AdapterRegistry) -> BlockNaming:
    """Begin to note changes of the cache. Returns what it has now."""
    pool = scheduler.kv.pool
    pool.journal = {}
    names = tuple(map(prefix.short, pool.keys))
    return BlockNaming(scheduler.kv.root, pool.block_size, names, adapters.digests)


def report_blocks(scheduler: Scheduler) -> None:
    """Report the changes since the last call, if there are any."""
    if not (journal := scheduler.kv.pool.journal):
        return
    scheduler.kv.pool.journal = {}
    added = tuple(prefix.short(key) for key, findable in journal.items() if findable)
    dropped = tuple(prefix.short(key) for key, findable in journal.items() if not findable)
    scheduler.emit(BlockNamesChanged(scheduler.step, scheduler.clock(), added, dropped))

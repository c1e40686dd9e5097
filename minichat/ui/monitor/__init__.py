"""The monitor's panes: KV blocks, queues, rates, latencies, events, experts."""

from minichat.ui.monitor.engine_line import EngineLine
from minichat.ui.monitor.events import EventLog
from minichat.ui.monitor.kvmap import KVMap
from minichat.ui.monitor.latency import Latency
from minichat.ui.monitor.owners import Owner
from minichat.ui.monitor.panel import MonitorPanel
from minichat.ui.monitor.queues import Queues
from minichat.ui.monitor.rates import RateGraphs

__all__ = ["EngineLine", "EventLog", "KVMap", "Latency", "MonitorPanel", "Owner", "Queues", "RateGraphs"]

"""The engine at work: blocks, queues, rates, latencies, events."""

from minichat.widgets.monitor.engine_line import EngineLine
from minichat.widgets.monitor.events import EventLog
from minichat.widgets.monitor.kvmap import KVMap
from minichat.widgets.monitor.latency import Latency
from minichat.widgets.monitor.owners import Owner
from minichat.widgets.monitor.panel import MonitorPanel
from minichat.widgets.monitor.queues import Queues
from minichat.widgets.monitor.rates import Rates

__all__ = ["EngineLine", "EventLog", "KVMap", "Latency", "MonitorPanel", "Owner", "Queues", "Rates"]

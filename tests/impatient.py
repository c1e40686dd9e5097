"""Imported by whatever drives a screen: Textual waits less for it to rest.

Twice a key it waits until the process has been idle for 20 ms, which was most of what such tests took.
"""

from textual import _wait

_wait.SLEEP_GRANULARITY, _wait.SLEEP_IDLE = 0.01, 0.0005

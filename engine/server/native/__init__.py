"""The engine's own routes: control, commands, replies that survive a disconnect, events, metrics."""

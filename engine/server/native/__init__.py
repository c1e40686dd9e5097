"""The engine's own routes: control, commands, replies that survive a cut link, events, metrics."""

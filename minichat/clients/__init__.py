"""The screen's interface to the engine, and its implementations."""

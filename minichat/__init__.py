"""minichat: chat with a language model in the terminal, and watch the engine that runs it."""

__version__ = "0.1.0"

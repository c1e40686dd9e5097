"""OpenAI's routes: their requests and responses."""

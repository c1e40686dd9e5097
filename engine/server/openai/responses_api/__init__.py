"""OpenAI's Responses API, which the Agents SDK and Codex use by default."""

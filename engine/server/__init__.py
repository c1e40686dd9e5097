"""The engine over HTTP: OpenAI's routes, a WebSocket, events, control and metrics. docs/server.md."""

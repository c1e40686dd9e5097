"""What a runner did, in a file: recorded by an engine, and replayed by a fresh runner."""

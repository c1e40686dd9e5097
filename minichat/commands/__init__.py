"""One file a command. Each is imported only when it is called, so that `--help` costs nothing."""

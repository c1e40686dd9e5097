"""One module per command, imported only when that command runs, so that `--help` stays fast."""

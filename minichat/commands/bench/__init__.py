"""`minichat bench`: its options, and the command."""

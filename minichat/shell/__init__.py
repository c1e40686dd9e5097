"""The user's terminal and machine: keys, paths, streams, themes and remembered choices."""

"""The person's terminal and machine: keys, paths, streams, themes, what is remembered."""

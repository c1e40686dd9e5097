"""Alt+C: step through the tokens of a reply."""

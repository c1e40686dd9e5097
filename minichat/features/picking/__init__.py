"""Alt+C: along the tokens of a reply."""

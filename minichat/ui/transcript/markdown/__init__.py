"""A message's text as lines of cells: split into pieces, parsed, laid out and highlighted."""

"""The chat panes and the bars around them."""

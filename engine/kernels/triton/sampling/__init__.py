"""From logits to tokens, without a sort."""

"""Training of the built-in model: text, tokenizer, training, evaluation, export."""

"""How the built-in model is trained: text, tokenizer, training, evaluation, export."""

"""How the built-in model is made: text, tokenizer, training, evaluation, export."""

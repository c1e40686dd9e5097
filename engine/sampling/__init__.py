"""How a token is drawn from a row of logits: each row by its own request's parameters and random stream."""

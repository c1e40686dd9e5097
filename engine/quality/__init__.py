"""What a scheme costs: the same text under each, beside the unquantized model."""

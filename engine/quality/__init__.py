"""The quality of quantization schemes, compared with the unquantized model on the same text."""

"""F3: how a chat's replies are sampled, and the likeliest next tokens."""

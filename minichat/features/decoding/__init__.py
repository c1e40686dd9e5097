"""F3: how a chat's replies are sampled, and what is likely to come next."""

"""F3: how a chat's replies are drawn, and what is likely to come next."""

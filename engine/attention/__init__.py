"""How a step attends to the paged cache: one protocol, several back ends."""

"""F8: what a step spends its time on, and what holds it."""

"""F8: where a step spends its time, and its bottleneck."""

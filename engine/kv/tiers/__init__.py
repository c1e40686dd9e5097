"""Storage tiers below the device's cache, where blocks are stored by name."""

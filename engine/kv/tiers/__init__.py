"""Places below the device's cache, where blocks lie by name."""

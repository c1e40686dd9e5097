"""Which models there are, how one is fetched and loaded, and engines that outlive the screen."""

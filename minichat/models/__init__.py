"""Available models, downloading and loading them, and engines that outlive the screen."""

"""Shell completion scripts for the command line, and what Tab completes in its chat without a screen."""

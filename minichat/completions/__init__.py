"""Shell completion scripts for minichat's command line."""

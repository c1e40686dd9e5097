"""Scripts that let a shell complete the command line of minichat."""

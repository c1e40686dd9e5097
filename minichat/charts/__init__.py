"""What `minichat quality` draws."""

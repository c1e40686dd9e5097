"""Tokens guessed ahead: who guesses them, which guesses stand, and whether guessing pays."""

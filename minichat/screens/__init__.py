"""The screens: the main one, and the few that come over it."""

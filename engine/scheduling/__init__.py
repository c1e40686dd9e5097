"""Decides which requests run next and which are preempted. Works on integers only."""

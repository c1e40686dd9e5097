"""Medusa heads for exported weights."""

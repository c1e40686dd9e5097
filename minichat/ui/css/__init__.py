"""Matching CSS rules with the widgets of the screen."""

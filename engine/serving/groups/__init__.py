"""Requests answered by several rows of the batch: beam searches, and several samples of one prompt."""

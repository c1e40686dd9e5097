"""Requests that are answered by several rows of the batch: beam searches, and many samples of one prompt."""

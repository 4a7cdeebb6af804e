"""Gymnasium environments as a resources server."""

"""Checkpoints on disk: parts, drafts, publication, the chain of claims."""

"""Real NeMo Gym servers as participants: the embedding, codecs of known components, the command that serves them.

Nothing of Gym is imported before a server of it is embedded, and nothing of it is patched.
"""

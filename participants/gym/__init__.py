"""Real NeMo Gym servers as participants: the embedding, the codecs of known components, and the command that serves them.

Nothing of Gym is imported before a server of it is embedded, and nothing of it is patched.
"""

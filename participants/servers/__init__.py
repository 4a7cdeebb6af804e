"""The kinds of server that take part, and the shell around their applications."""

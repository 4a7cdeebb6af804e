"""What the machines of a process did, written down as they do it."""

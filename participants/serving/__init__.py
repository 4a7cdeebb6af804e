"""Running servers: hypercorn, processes, and a network in memory for tests."""

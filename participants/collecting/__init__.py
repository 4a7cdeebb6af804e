"""Collecting: rollouts from a file of tasks into a file of results, by the coordinator, without a trainer."""

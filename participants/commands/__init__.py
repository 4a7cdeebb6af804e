"""The `statecore` commands of this package."""

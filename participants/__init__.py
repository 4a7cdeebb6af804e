"""The checkpoint protocol for Gym servers: participants, coordinator, files. Stands on `statecore`."""

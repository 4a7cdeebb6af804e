"""A kind of server of your own: table, world, server and tests, as `statecore new kind` writes them."""

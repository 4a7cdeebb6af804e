"""The protocol's machines, each a total table: pure."""

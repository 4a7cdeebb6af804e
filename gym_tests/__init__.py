"""The embedding on real NeMo Gym servers: `make test-gym`, in an environment of its own."""

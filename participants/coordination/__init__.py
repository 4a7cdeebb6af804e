"""The coordinator: deployment, dispatch, the checkpoint transaction, restore and classification."""

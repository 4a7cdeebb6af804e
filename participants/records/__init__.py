"""What is written down: positions, payloads, records and manifests."""

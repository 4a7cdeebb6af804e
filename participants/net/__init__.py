"""HTTP on both sides: connections, control replies, requests and their refusals."""

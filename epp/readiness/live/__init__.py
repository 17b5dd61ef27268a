"""Checks that ask: the EPP over gRPC, workers over HTTP, and the whole chain by requests through the Gateway."""

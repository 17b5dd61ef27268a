"""The admin port: what the EPP knows, for people and tools."""

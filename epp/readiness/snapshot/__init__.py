"""What the checks read, as a document: recorded, redacted, written and read again."""

"""The protocol: from ext_proc messages to a pick and back."""

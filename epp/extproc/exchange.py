"""The state machine of one ext_proc stream: messages in, messages out; no I/O, no clock."""

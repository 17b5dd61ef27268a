"""Carriers of ext_proc streams."""

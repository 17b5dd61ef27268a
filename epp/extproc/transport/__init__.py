"""Carriers of ext_proc messages; the only place that knows gRPC."""

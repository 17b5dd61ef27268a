"""Logs: one JSON object a line on standard error, fixed event strings with fields."""

import logging
import sys

import structlog

LEVELS = ("debug", "info", "warning", "error")


def configure_logs(level: str) -> None:
    """Write events of `level` and above as JSON lines to standard error; on a terminal, as coloured text."""
    terminal = sys.stderr.isatty()
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([] if terminal else [structlog.processors.dict_tracebacks]),
        structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )

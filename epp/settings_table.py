"""The table of all settings, as a person reads it, as JSON, and as docs/settings.md."""

import io
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from pydantic_core import PydanticUndefined
from rich.console import Console
from rich.table import Table

from epp.settings import SECTIONS, names_of

_DOCUMENT_HEAD = """# Settings

All settings are environment variables, read once at the start. An unknown `EPP_*` name or a value that does not fit
stops `epp serve` with exit code 2 and a message that names it. An empty value means unset.

This page is generated from the settings model by `make settings-doc`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as its documentation shows it."""

    section: str
    name: str
    also: list[str]
    type: str
    default: str
    description: str


def rows() -> list[Row]:
    """Every setting, in the order of the model."""
    return [
        Row(
            section=(section.__doc__ or "").rstrip("."),
            name=names_of(name, field)[0],
            also=names_of(name, field)[1:],
            type=_type_name(field.annotation),
            default="" if field.default in (None, PydanticUndefined) else _plain(field.default),
            description=field.description or "",
        )
        for section in SECTIONS
        for name, field in section.model_fields.items()
    ]


def as_json() -> str:
    """One JSON array of rows."""
    return msgspec.json.format(msgspec.json.encode(rows())).decode() + "\n"


def as_markdown() -> str:
    """The whole of docs/settings.md."""
    lines = [_DOCUMENT_HEAD]
    section = ""
    for row in rows():
        if row.section != section:
            section = row.section
            lines.append(f"\n## {section}\n\n| setting | type | default | meaning |\n|---|---|---|---|\n")
        also = f" Also: {', '.join(f'`{name}`' for name in row.also)}." if row.also else ""
        default = f"`{row.default}`" if row.default else "unset"
        meaning = row.description.replace("|", "\\|")
        lines.append(f"| `{row.name}` | {row.type} | {default} | {meaning}{also} |\n")
    return "".join(lines)


def as_table() -> str:
    """A table for the terminal."""
    table = Table("setting", "default", "meaning", show_lines=False)
    section = ""
    for row in rows():
        if row.section != section:
            section = row.section
            table.add_section()
            table.add_row(f"[bold]{section}[/bold]", "", "")
        also = f" (also {', '.join(row.also)})" if row.also else ""
        table.add_row(row.name, row.default, row.description + also)
    text = io.StringIO()
    Console(file=text, width=140).print(table)
    return text.getvalue()


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_name(annotation: object) -> str:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{choice}`" for choice in annotation)
    name = str(annotation) if not isinstance(annotation, type) else annotation.__name__
    return name.replace("pathlib.", "").replace(" | None", "").replace("|", "or").lower()

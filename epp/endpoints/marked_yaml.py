"""YAML or JSON as plain data, together with the line of every value."""

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

Where = tuple[str | int, ...]
"""Keys and list positions that lead from the document to a value."""


class DocumentError(Exception):
    """The text is no single YAML or JSON document; `line` counts from 1."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and where each of its values stood."""

    data: object
    lines: Mapping[Where, int]

    def line(self, where: Where) -> int:
        """The line of the value at `where`, or of the nearest value around it that exists."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)


def load(text: str) -> Document:
    """Parse `text`. Raises DocumentError."""
    if text.lstrip()[:1] in ("{", "["):
        text = text.replace("\t", " ")  # JSON may indent by tabs, which YAML forbids
    marks = _Marks()
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return Document(None, {})
        marks.mark(root, ())
        return Document(loader.construct_document(root), marks.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DocumentError(mark.line + 1 if mark else 1, error.problem or str(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(line, f"character {error.character:#04x} is not allowed") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(1, str(error)) from None
    except RecursionError:
        raise DocumentError(1, "nested too deeply") from None


class _Marks:
    """Walks the nodes of a document; refuses what would make two values of one key, or one value of two places."""

    def __init__(self) -> None:
        self.lines: dict[Where, int] = {}
        self._seen: set[int] = set()

    def mark(self, node: yaml.Node, where: Where) -> None:
        if id(node) in self._seen:
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=node.start_mark)
        self._seen.add(id(node))
        self.lines.setdefault(where, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self.mark(item, (*where, i))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = (*where, str(key.value))
                if name in self.lines:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                self.lines[name] = key.start_mark.line + 1
                self.mark(value, name)

"""Whether a chat template reads a message's content as parts or as one string (vLLM's "auto" content format).

vLLM looks for a loop over the content of an item of `messages`, following plain assignments; so do we.
"""

from collections.abc import Iterator

from jinja2 import nodes


def reads_parts(template: nodes.Template) -> bool:
    """Whether the template loops over `content` of a message."""
    messages = set(_aliases(template, "messages"))
    items = [
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_is_of(loop.iter, name) for name in messages)
    ]
    return any(_is_of(loop.iter, item, "content") for loop in template.find_all(nodes.For) for item in items)


def _aliases(template: nodes.Template, name: str) -> Iterator[str]:
    """`name` and every variable to which it, or a slice or filter of it, is assigned."""
    pending, seen = [name], {name}
    while pending:
        current = pending.pop()
        yield current
        for assign in template.find_all(nodes.Assign):
            target = assign.target
            if isinstance(target, nodes.Name) and target.name not in seen and _is_of(assign.node, current):
                seen.add(target.name)
                pending.append(target.name)


def _is_of(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether `node` reads variable `name` (its item `key`), perhaps through filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return _is_name(node, name)
    if isinstance(node, nodes.Getitem):
        return _is_name(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _is_name(node.node, name) and node.attr == key


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name

"""The names under which deployments say what a worker does."""

from epp.endpoints.endpoint import Role

ANY_ROLE = frozenset({Role.DECODE, Role.PREFILL})
"""A worker that says nothing prefills and decodes its own requests."""

ROLES = {
    "decode": frozenset({Role.DECODE}),
    "prefill": frozenset({Role.PREFILL}),
    "encode": frozenset({Role.ENCODE}),
    "both": ANY_ROLE,
    "prefill-decode": ANY_ROLE,
    "encode-prefill": frozenset({Role.ENCODE, Role.PREFILL}),
    "encode-prefill-decode": frozenset(Role),
}
"""llm-d's values of the label `llm-d.ai/role`; ours are the same."""

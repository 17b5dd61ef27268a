"""Group E: the rights of the EPP's service account, from the roles that were recorded."""

from collections.abc import Iterable, Iterator

from epp.readiness.chain import Chain, Entry
from epp.readiness.checks.sources import OWN
from epp.readiness.rule import Group, NotApplicableError, Problem, check
from epp.readiness.snapshot.core_objects import PolicyRule, RoleBinding, Subject
from epp.readiness.snapshot.gateway_objects import POOL_GROUP

VERBS = ("get", "list", "watch")
NEEDED = (("", "pods"), (POOL_GROUP, "inferencepools"))


@check(
    33,
    "picker.rights",
    group=Group.PICKER,
    needs=(31,),
    rule="the EPP's service account may get, list and watch pods and InferencePools of the pool's namespace",
    source=OWN + ", as GIE's own EPPs need",
    fix="bind a Role with these rights to it, as manifests/base/rbac.yaml does",
)
def rights(chain: Chain) -> Iterator[Problem]:
    pods = chain.picker_pods
    if not pods:
        raise NotApplicableError("no pod of the EPP is recorded")
    if chain.entry is Entry.OPERATOR and not _bound_here(chain):
        raise NotApplicableError("Dynamo's operator gives its EPP rights of its own")
    for account in sorted({pod.spec.service_account_name or "default" for pod in pods}):
        rules = list(_rules(chain, account))
        for group, resource in NEEDED:
            missing = [verb for verb in VERBS if not any(_allows(rule, group, resource, verb) for rule in rules)]
            if missing:
                _sure(chain)
                yield Problem(
                    f"EPP service account may not {'/'.join(missing)} {resource}", f"ServiceAccount {account}"
                )


def _bound_here(chain: Chain) -> bool:
    return bool(chain.body.sections.role_bindings.objects)


def _rules(chain: Chain, account: str) -> Iterator[PolicyRule]:
    """Rules that hold in the pool's namespace. Raises UnreadableError when nothing at all is known."""
    namespace, sections = chain.pool_place.namespace, chain.body.sections
    home = chain.picker_place.namespace
    chain.readable(sections.role_bindings, "RoleBindings", namespace)
    roles = {it.metadata.name: it for it in chain.objects(sections.roles, "Roles", namespace)}
    everywhere = {it.metadata.name: it for it in sections.cluster_roles.objects}
    local = [it for it in sections.role_bindings.objects if it.metadata.namespace == namespace]
    for binding in (*local, *sections.cluster_role_bindings.objects):
        if _names(binding.subjects or (), home, account):
            known = everywhere if binding.role_ref.kind == "ClusterRole" else roles
            role = known.get(binding.role_ref.name)
            yield from (role.rules or ()) if role else ()


def _sure(chain: Chain) -> None:
    """Raises UnreadableError when a right may come from what could not be read."""
    sections = chain.body.sections
    chain.readable(sections.cluster_role_bindings, "ClusterRoleBindings", "*")
    if any(_through_cluster_role(it) for it in sections.role_bindings.objects):
        chain.readable(sections.cluster_roles, "ClusterRoles", "*")


def _through_cluster_role(binding: RoleBinding) -> bool:
    return binding.role_ref.kind == "ClusterRole"


def _names(subjects: Iterable[Subject], namespace: str, account: str) -> bool:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return any(
        (it.kind == "ServiceAccount" and it.name == account and (it.namespace or namespace) == namespace)
        or (it.kind == "Group" and it.name in groups)
        for it in subjects
    )


def _allows(rule: PolicyRule, group: str, resource: str, verb: str) -> bool:
    return (
        _in(group, rule.api_groups)
        and _in(resource, rule.resources)
        and _in(verb, rule.verbs)
        and not rule.resource_names
    )


def _in(wanted: str, given: Iterable[str] | None) -> bool:
    values = tuple(given or ())
    return wanted in values or "*" in values


CHECKS = (rights,)

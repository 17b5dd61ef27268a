"""From settings to the policy."""

import difflib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Role
from epp.scheduling.affinity import Session
from epp.scheduling.catalogue import RuleError, make_filter, make_picker, make_scorer
from epp.scheduling.config_file import Profile, RuleConfig, ScorerConfig, read_config
from epp.scheduling.disaggregation import Disaggregation, DisaggregationMetrics, DisaggregationRules
from epp.scheduling.dynamo_cost import DynamoCost, DynamoWeights
from epp.scheduling.pickers import RandomPick
from epp.scheduling.plugins import Filter, Scorer
from epp.scheduling.policy import Policy
from epp.scheduling.predicted_ttft import PredictedTtft, Prices
from epp.scheduling.round_robin import RoundRobin
from epp.scheduling.scored import Filtered, ScoredPolicy, Weighted
from epp.scheduling.sessions import Sessions
from epp.settings import Settings, SettingsError

Build = Callable[[Settings, random.Random], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """All that EPP_CONFIG_FILE can change while the EPP runs."""

    decode: Policy
    prefill: Policy
    shadow: Policy | None
    """Decides on the side beside `decode`."""


def _scored(name: str, text: str) -> Build:
    return lambda _settings, draw: ScoredPolicy(_weighted(parse_scorers(text)), draw, name=name)


POLICIES: dict[str, Build] = {
    "predicted-ttft": lambda settings, draw: PredictedTtft(draw, _prices(settings)),
    "round-robin": lambda _settings, _draw: RoundRobin(),
    "random": lambda _settings, draw: ScoredPolicy((), draw, picker=RandomPick(), name="random"),
    "least-in-flight": _scored("least-in-flight", "least-in-flight"),
    "least-tokens": _scored("least-tokens", "least-tokens"),
    "approximate-prefix": _scored("approximate-prefix", "predicted-prefix:3,least-in-flight:2,least-tokens:2"),
    "dynamo-cost": lambda settings, draw: DynamoCost(draw, _dynamo_weights(settings), settings.block_size),
}


def policy_from(
    settings: Settings,
    draw: random.Random | None = None,
    *,
    role: Role = Role.DECODE,
    sessions: Sessions | None = None,
) -> Policy:
    """The policy that the settings ask for; `draw` decides between equal endpoints, `sessions` ties sessions to them.

    `EPP_CONFIG_FILE` comes first where it has a profile for `role`, then `EPP_SCORERS`, then `EPP_POLICY`.

    Raises SettingsError that names the setting and what was expected.
    """
    draw = draw or random.Random()  # noqa: S311 - no secret hangs on a tie
    profile = _profile(settings, role)
    where = f"EPP_CONFIG_FILE={settings.config_file}: profiles.{role}: "
    if profile is None:
        where = "EPP_SCORERS, EPP_FILTERS, EPP_PICKER: "
        profile = _environment_profile(settings)
    try:
        return _build(profile, settings, draw, sessions)
    except RuleError as error:
        raise SettingsError(f"{where}{error}") from None


def policies_from(settings: Settings, sessions: Sessions | None = None) -> Policies:
    """The policies of all roles; `sessions` remembers who decodes for each session. Raises SettingsError."""
    return Policies(
        decode=policy_from(settings, sessions=sessions),
        prefill=policy_from(settings, role=Role.PREFILL),
        shadow=_shadow_from(settings),
    )


def _shadow_from(settings: Settings) -> Policy | None:
    profile = None if settings.config_file is None else read_config(settings.config_file).shadow
    if profile is None and settings.shadow_policy is None:
        return None
    where = f"EPP_CONFIG_FILE={settings.config_file}: shadow: " if profile is not None else "EPP_SHADOW_POLICY: "
    try:
        return _build(profile or Profile(policy=settings.shadow_policy), settings, random.Random())  # noqa: S311
    except RuleError as error:
        raise SettingsError(f"{where}{error}") from None


def disaggregation_from(settings: Settings, prefill: Policy, registry: CollectorRegistry) -> Disaggregation:
    """How prefill is split off, in pools that have workers for it; `prefill` picks among them."""
    rules = DisaggregationRules(
        decider=settings.disaggregation,
        uncached_tokens=settings.disaggregation_uncached_tokens,
        transfer_seconds=settings.kv_transfer_us_per_token / 1e6,
        missing=settings.prefill_missing,
    )
    return Disaggregation(rules, prefill, DisaggregationMetrics(registry))


def parse_scorers(text: str) -> tuple[ScorerConfig, ...]:
    """`name:weight,name` as `EPP_SCORERS` has it; a weight that is not named is 1. Raises RuleError."""
    parsed = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, colon, weight = part.partition(":")
        try:
            parsed.append(ScorerConfig(name=name.strip(), weight=float(weight) if colon else 1.0))
        except ValueError:
            raise RuleError(f"scorer {part!r}: expected name:weight with a weight from 0 to 1000") from None
    return tuple(parsed)


def _profile(settings: Settings, role: Role) -> Profile | None:
    if settings.config_file is None:
        return None
    return read_config(settings.config_file).profiles.get(role)


def _environment_profile(settings: Settings) -> Profile:
    filters = tuple(RuleConfig(name=name.strip()) for name in (settings.filters or "").split(",") if name.strip())
    if settings.scorers is None:
        return Profile(policy=settings.policy, filters=filters)
    try:
        scorers = parse_scorers(settings.scorers)
    except RuleError as error:
        raise SettingsError(f"EPP_SCORERS={settings.scorers!r}: {error}") from None
    return Profile(filters=filters, scorers=scorers, picker=RuleConfig(name=settings.picker))


def _build(profile: Profile, settings: Settings, draw: random.Random, sessions: Sessions | None = None) -> Policy:
    policy: Policy
    if profile.scorers:
        picker = profile.picker or RuleConfig(name="max-score")
        weighted = _weighted(profile.scorers)
        _remember(sessions, (each.scorer for each in weighted))
        policy = ScoredPolicy(weighted, draw, picker=make_picker(picker.name, picker.parameters), name="scorers")
    else:
        policy = _named(profile.policy or settings.policy)(settings, draw)
    filters = [make_filter(each.name, each.parameters) for each in profile.filters]
    _remember(sessions, filters)
    return Filtered(filters, policy) if filters else policy


def _remember(sessions: Sessions | None, rules: Iterable[Filter | Scorer]) -> None:
    for rule in rules:
        if sessions is not None and isinstance(rule, Session):
            rule.sessions = sessions


def _weighted(scorers: Sequence[ScorerConfig]) -> list[Weighted]:
    return [Weighted(each.name, make_scorer(each.name, each.parameters), each.weight) for each in scorers]


def _named(name: str) -> Build:
    build = POLICIES.get(name)
    if build is None:
        near = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"EPP_POLICY={name!r}: expected one of {', '.join(sorted(POLICIES))}{hint}")
    return build


def _prices(settings: Settings) -> Prices:
    return Prices(
        least=settings.price_least,
        most=settings.price_most,
        in_flight=settings.price_in_flight,
        context=settings.price_context,
        exploration=settings.exploration,
    )


def _dynamo_weights(settings: Settings) -> DynamoWeights:
    return DynamoWeights(
        overlap_score_credit=settings.kv_overlap_score_credit,
        overlap_score_credit_decay=settings.kv_overlap_score_credit_decay,
        prefill_load_scale=settings.prefill_load_scale,
        decode_active_request_weight=settings.decode_active_request_weight,
        temperature=settings.temperature,
    )

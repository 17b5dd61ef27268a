"""The checks of a snapshot, one file for each link of the chain."""

from epp.readiness.checks import (
    api,
    gateway,
    matching,
    network,
    picker,
    pool,
    proxy,
    rbac,
    route,
    settings,
    tls,
    workers,
)

ALL = (
    *api.CHECKS,
    *gateway.CHECKS,
    *proxy.CHECKS,
    *route.CHECKS,
    *matching.CHECKS,
    *pool.CHECKS,
    *picker.CHECKS,
    *rbac.CHECKS,
    *tls.CHECKS,
    *workers.CHECKS,
    *settings.CHECKS,
    *network.CHECKS,
)

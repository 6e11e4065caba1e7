"""The settings of a queue as text for people: the words and numbers of the options that set them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from aiozkqueue.layout import AtLeastOnce, ConsumeOnce, ConsumeTimes, Exponential, Fixed, History

if TYPE_CHECKING:
    from aiozkqueue.layout import Backoff, Policy, Schedule

#: The growth of a delay per failure, unless the text names another.
_GROWTH: Final = 2


def kind_of(policy: Policy) -> str:
    """Return a policy without its backoff, such as ``consume-times=5``."""
    if isinstance(policy, ConsumeTimes):
        return f"consume-times={policy.times}"
    return "consume-once" if isinstance(policy, ConsumeOnce) else "at-least-once"


def policy_settings(policy: Policy | None) -> dict[str, str | None]:
    """Return a policy as the settings that it has; None: this kind of policy has no such setting."""
    if policy is None:
        return {"policy": None, "backoff": None, "exhausted": None}
    backoff = None if isinstance(policy, ConsumeOnce) else _backoff(policy.backoff)
    exhausted = None if isinstance(policy, AtLeastOnce) else policy.exhausted
    return {"policy": kind_of(policy), "backoff": backoff, "exhausted": exhausted}


def setting_text(value: object) -> str | int | float | None:
    """Return the value of another setting: a history as text, and any other one as it is."""
    if isinstance(value, History):
        return f"{value.seconds:.15g},most={value.most}{',payload' if value.payload else ''}"
    return value if isinstance(value, int | float | str) or value is None else str(value)


def _backoff(backoff: Backoff) -> str:
    if isinstance(backoff, Exponential):
        growth = "" if backoff.factor == _GROWTH else f" (times {backoff.factor:.15g})"
        return f"{backoff.initial:.15g}..{backoff.maximum:.15g}{growth}"
    delays = [backoff.seconds] if isinstance(backoff, Fixed) else cast("Schedule", backoff).delays
    return ",".join(f"{delay:.15g}" for delay in delays)

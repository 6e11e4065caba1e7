"""One queue: its figures, charts, consumers and configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from aiozkqueue.http.dashboard.pages.consumers import consumers_of
from aiozkqueue.http.dashboard.readings import series, times
from aiozkqueue.layout import IN_FORCE, AtLeastOnce, QueueConfig, is_default
from aiozkqueue.operations.settings_text import policy_settings, setting_text

if TYPE_CHECKING:
    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit


async def show(visit: Visit, name: str) -> Response:
    """Show one queue. Everything but the messages is shown here, so a deep queue costs no more than a short one."""
    queue = await visit.queue(name)
    figures = await visit.figures_of(name)
    period = series.period(visit.query("range"))
    config = await visit.shared.get_any(("configuration", name), queue.configuration)
    return visit.page(
        "queue.html",
        section="/",
        tab="overview",
        figures=figures,
        consumers=await visit.shared.get_or_previous(("consumers", name), lambda: consumers_of(visit.session, name)),
        settings=_settings(config),
        period=period,
        periods=series.PERIODS,
        times=await visit.shared.get_or_previous(("times", name, period), lambda: times.read(queue, period.seconds))
        if config.history
        else None,
        has_history=bool(config.history),
        may_change=visit.visitor.may_change(name),
    )


async def points(visit: Visit, name: str) -> Response:
    """Return the points of the charts of a queue as JSON."""
    await visit.queue(name)
    figures = await visit.figures_of(name)
    return series.answer(visit.charts, visit.sampler, figures, series.period(visit.query("range")))


def _settings(config: QueueConfig) -> list[tuple[str, object, bool]]:
    """Return the settings in force: the name, the value, and whether it differs from the default."""
    found: list[tuple[str, object, bool]] = []
    for setting in fields(QueueConfig):
        value = getattr(config, setting.name)
        given = not is_default(setting.name, value)
        if setting.name == "policy":
            policy = policy_settings(config.policy or AtLeastOnce())
            found += [(name, text, given) for name, text in policy.items() if text is not None]
        else:
            shown = IN_FORCE[setting.name] if value is None or value is False else setting_text(value)
            found.append((setting.name, shown, given))
    return found

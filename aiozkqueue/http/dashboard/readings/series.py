"""The points of the charts of a queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.responses import JSONResponse

from aiozkqueue.http.core.charts import point_of
from aiozkqueue.sampling import rates_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aiozkqueue.http.core.charts import Charts, Point
    from aiozkqueue.sampling import Rates, Sampler

    from .figures import Figures


class Period(NamedTuple):
    """The time that the charts cover."""

    name: str
    title: str
    seconds: float


PERIODS: Final = (
    Period("15m", "15 min", 900.0),
    Period("1h", "1 h", 3600.0),
    Period("6h", "6 h", 6 * 3600.0),
    Period("24h", "24 h", 24 * 3600.0),
)
#: The maximum number of points of a line.
MOST: Final = 720
#: Seconds without a sample after which a line is interrupted.
GAP: Final = 400.0


def period(name: str) -> Period:
    """Return the period of this name; 15 minutes if the name is unknown."""
    return next((choice for choice in PERIODS if choice.name == name), PERIODS[0])


def answer(charts: Charts, sampler: Sampler, figures: Figures, covered: Period) -> Response:
    """Return the points as JSON, oldest first. The last point is the sample that the page shows as figures."""
    now = time.time()
    stored = charts.points(figures.name, now - covered.seconds)
    since = stored[-1].at if stored else now - covered.seconds
    fresh = [point_of(sample) for sample in sampler.history(figures.name) if since < sample.at < figures.sample.at]
    last = point_of(figures.sample)
    return JSONResponse(
        {"from": now - covered.seconds, "to": now, **lines(thinned([*stored, *fresh], MOST), last)},
        headers={"Cache-Control": "no-store"},
    )


def lines(earlier: Sequence[Point], last: Point) -> dict[str, list[float | None]]:
    """Return the lines of the charts: a list for each, with None where no samples were taken."""
    found: dict[str, list[float | None]] = {
        name: [] for name in ("at", "put", "removed", "waiting", "in_flight", "dead")
    }
    before: Point | None = None
    for current in [*(point for point in earlier if point.at < last.at), last]:
        if before is not None and current.at - before.at > GAP:
            _add(found, before.at + 1, None, None)
            before = None
        _add(found, current.at, None if before is None else rates_between(before, current), current)
        before = current
    return found


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return up to about ``most`` of the points, evenly chosen. The rates between those left are averages."""
    return points[:: 1 + len(points) // most]


def _add(found: dict[str, list[float | None]], at: float, rates: Rates | None, point: Point | None) -> None:
    found["at"].append(round(at, 1))
    found["put"].append(None if rates is None else round(rates.put, 3))
    found["removed"].append(None if rates is None else round(rates.removed, 3))
    for name in ("waiting", "in_flight", "dead"):
        found[name].append(None if point is None else getattr(point, name))

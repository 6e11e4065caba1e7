"""The figures of a queue as the pages show them, and the signs that it needs attention. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from aiozkqueue.sampling import Rates, Sample

#: The age of the oldest waiting message from which a queue needs attention, seconds.
OLD: Final = 15 * 60.0
#: Messages per second below which a backlog counts as constant.
_STILL: Final = 0.05

Sign = Literal["no consumers", "paused", "full", "old", "dead letters"]


class Figures(NamedTuple):
    """A queue at one time. All figures of a page are from one of these, so they agree."""

    name: str
    sample: Sample
    rates: Rates
    age: float | None
    """How long the oldest waiting message has waited, seconds."""
    signs: tuple[Sign, ...]
    """Why it needs attention."""

    @property
    def sick(self) -> bool:
        """Whether messages are stuck or were given up; a paused queue or an old message is only a warning."""
        return not {"no consumers", "dead letters"}.isdisjoint(self.signs)

    @property
    def idle(self) -> bool:
        """Whether it is empty, and nothing happens in it."""
        return not (self.sample.size or self.sample.dead or self.sample.paused or any(self.rates))

    @property
    def drain(self) -> float | None:
        """The seconds until no message waits, at the current rates; None: it does not get shorter."""
        net = self.rates.removed - self.rates.put
        return self.sample.waiting / net if net > _STILL else None

    @property
    def grows(self) -> bool:
        """Whether more messages are put than removed."""
        return self.rates.put - self.rates.removed > _STILL


def figures_of(name: str, sample: Sample, rates: Rates, now: float) -> Figures:
    """Return the figures of a queue from its sample, at a time in seconds since 1970."""
    age = sample.age(now)
    signs: dict[Sign, bool] = {
        "paused": sample.paused,
        "no consumers": bool(sample.waiting and not sample.consumers),
        "full": sample.max_size is not None and sample.size >= sample.max_size,
        "old": bool(sample.waiting and age is not None and age >= OLD),
        "dead letters": bool(sample.dead),
    }
    return Figures(name, sample, rates, age, tuple(sign for sign, given in signs.items() if given))

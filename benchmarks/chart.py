"""A chart of the rates of aiozkqueue and its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .rounds import Results

_SUBJECTS = {"put": "Put", "take": "Take and commit", "listener": "Listen", "iterate": "Iterate"}
_PEERS = ("Curator", "kazoo", "SAQ", "stock aiozk")
_OURS, _RAW, _PEER = "#1f77b4", "#bbbbbb", "#e08a3c"


def draw(path: Path, results: Results, machine: Mapping[str, str]) -> bool:
    """Write a PNG; return False if no rates were measured that it could show."""
    subjects = {
        title: [name for name, own in results.subjects.items() if own == subject and name in results.samples]
        for subject, title in _SUBJECTS.items()
    }
    subjects = {title: names for title, names in subjects.items() if names}
    if not subjects:
        return False
    heights = [len(names) for names in subjects.values()]
    figure = Figure(figsize=(10, 1.5 + 0.33 * sum(heights) + 0.5 * len(heights)), layout="constrained")
    plots = figure.subplots(len(subjects), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for plot, (title, names) in zip(plots, subjects.items(), strict=True):
        rates = {name: results.median(name) or 0.0 for name in names}
        names = sorted(rates, key=lambda name: rates[name])  # noqa: PLW2901 - the same, in order
        bars = plot.barh(names, [rates[name] for name in names], color=[_colour(name) for name in names])
        plot.bar_label(bars, [f"{rates[name]:,.0f}" for name in names], padding=3, fontsize=8)
        plot.set_xscale("log")
        plot.set_xlim(left=10, right=5_000_000)
        plot.set_title(title, loc="left", fontsize=10, fontweight="bold")
        plot.spines[["top", "right"]].set_visible(False)
    plots[-1].set_xlabel("messages a second, logarithmic")
    figure.suptitle(
        f"{machine['cpu']}, {machine['cores']} cores, ZooKeeper {machine['zookeeper']} with fsync, 100-byte payloads",
        fontsize=9,
    )
    figure.savefig(path, dpi=130)
    return True


def _colour(name: str) -> str:
    if name.startswith("raw"):
        return _RAW
    return _PEER if name.startswith(_PEERS) else _OURS

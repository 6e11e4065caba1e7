"""The output of the account, for people or programs."""

from __future__ import annotations

import signal

from aiozkqueue.cli import output
from aiozkqueue.cli.demo.account import Account


def print_account(account: Account, *, as_json: bool) -> None:
    """Print the account to stdout."""
    if as_json:
        _print_json(account)
    else:
        _print_table(account)


def _print_json(account: Account) -> None:
    victim = account.victim
    output.print_json(
        {
            "balanced": account.balanced,
            "lines_in": len(account.lines),
            "results_out": len(account.results),
            "lost": account.lost,
            "twice": account.twice,
            "altered": account.altered,
            "left_in_queues": account.left,
            "dead_letters": account.dead_letters,
            "by_worker": dict(account.by_worker),
            "killed": None
            if victim is None
            else {
                "worker": victim.name,
                "pid": victim.pid,
                "signal": signal.Signals(-victim.status).name,
                "inside_line": victim.line + 1,
                "claims_at_that_moment": victim.claims,
            },
            "take_over_seconds": None if account.take_over is None else round(account.take_over, 3),
            "seconds": round(account.seconds, 3),
        }
    )


def _print_table(account: Account) -> None:
    victim, redelivered, take_over = account.victim, account.redelivered, account.take_over
    workers = sorted(account.by_worker.items())
    rows: list[tuple[str, object]] = [
        ("lines put into the first queue", len(account.lines)),
        ("results taken from the second queue", len(account.results)),
        ("lost", len(account.lost)),
        ("duplicated", len(account.twice)),
        ("altered", len(account.altered)),
        ("still in the queues", account.left),
        ("dead letters", account.dead_letters),
        *((f"processed by {name}", count) for name, count in workers),
    ]
    if victim is not None:
        died = signal.Signals(-victim.status).name
        rows += [
            (f"killed with {died} inside a transaction", f"{victim.name} (pid {victim.pid}), line {victim.line + 1}"),
            ("messages in flight at that moment", victim.claims),
        ]
    if redelivered is not None and take_over is not None:
        rows.append((f"line redelivered to {redelivered.worker} after", f"{take_over:.2f} s"))
    rows.append(("time from the first line to the last", f"{account.seconds:.2f} s"))
    output.print_table(["", "account"], rows)
    output.print_verdict(
        "Every line was processed exactly once." if account.balanced else "The account does not balance.",
        good=account.balanced,
    )

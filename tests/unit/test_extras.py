"""The errors for a missing package, and for a package in an unsupported version."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.errors import MissingExtraError
from aiozkqueue.extras import needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install an old version of a package, without a module and a name that newer versions have."""
    (tmp_path / "oldish").mkdir()
    (tmp_path / "oldish" / "__init__.py").touch()
    (tmp_path / "oldish-1.0.dist-info").mkdir()
    (tmp_path / "oldish-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: oldish\nVersion: 1.0\n")
    (tmp_path / "oldish-1.0.dist-info" / "RECORD").write_text("oldish/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    wanted = ["anyio>=4.6", "oldish>=3; extra == 'other'", "Oldish<3,>=2; extra == 'spark'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _name: wanted)
    return "oldish"


def import_new_module() -> None:
    import_module("oldish.new")


def import_new_name() -> None:
    exec("from oldish import New", {})


@pytest.mark.parametrize("use", [import_new_module, import_new_name])
def test_the_error_for_an_unsupported_package_version_names_it_and_the_supported_ones(
    old: str, use: Callable[[], None]
) -> None:
    with pytest.raises(MissingExtraError) as raised, needs("spark"):
        use()
    message = str(raised.value)
    assert message.startswith("oldish 1.0 is installed, and aiozkqueue needs Oldish<3,>=2 (")
    assert message.endswith("): pip install 'aiozkqueue[spark]'")
    assert raised.value.name == old


def test_a_missing_package_raises_an_error_that_names_it() -> None:
    with pytest.raises(MissingExtraError, match=r"^nowhere is not installed: pip install"), needs("spark"):
        import_module("nowhere.part")


@pytest.mark.usefixtures("old")
def test_an_import_error_of_aiozkqueue_itself_is_raised_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError) as raised, needs("spark"):
        import_module("aiozkqueue.nowhere")
    assert not isinstance(raised.value, MissingExtraError)


_OLD_SPARK = """
import sys
import pyspark.sql.datasource
sys.modules["pyspark.sql.streaming.datasource"] = None  # as before 4.2
import pyspark_aiozkqueue
from aiozkqueue.errors import MissingExtraError
print(pyspark_aiozkqueue.DefaultSource.name())
for use in (lambda: pyspark_aiozkqueue.DefaultSource({}), lambda: __import__("aiozkqueue.spark.transfer")):
    try:
        use()
    except MissingExtraError as error:
        print(error)
"""


def test_an_old_spark_finds_the_format_and_an_error_names_the_required_version() -> None:
    pytest.importorskip("pyspark")
    done = subprocess.run([sys.executable, "-c", _OLD_SPARK], capture_output=True, text=True, check=True)
    name, *messages = done.stdout.splitlines()
    assert name == "aiozkqueue"
    assert len(messages) == 2
    for line in messages:
        assert line.startswith("pyspark ")
        assert "is installed, and aiozkqueue needs pyspark<5,>=4.2" in line

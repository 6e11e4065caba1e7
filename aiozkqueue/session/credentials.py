"""Credentials from the environment, or from a file: for the command and for Spark. `connect` warns if it ignores them.

Docker and Kubernetes pass secrets as files, which do not appear in the environment of child processes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.zookeeper import Auth

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Credentials in the form of `Auth.parse_all`, and a file that contains such text.
AUTH: Final = "AIOZKQUEUE_AUTH"
AUTH_FILE: Final = "AIOZKQUEUE_AUTH_FILE"


def credentials_of_environment(environment: Mapping[str, str] = os.environ) -> list[Auth]:
    """Return the credentials of `AUTH` or `AUTH_FILE`; none if neither is set.

    Raises: InvalidOptionError: both are set; otherwise as `credentials_of_file`.
    """
    text, file = environment.get(AUTH, "").strip(), environment.get(AUTH_FILE, "")
    if text and file:
        msg = f"{AUTH} and {AUTH_FILE} are both set; unset one of them"
        raise InvalidOptionError(msg)
    return credentials_of_file(file, AUTH_FILE) if file else _parsed(text, AUTH)


def set_in_environment(environment: Mapping[str, str] = os.environ) -> str:
    """Return which of the variables names credentials; an empty text if none does."""
    return next((variable for variable in (AUTH, AUTH_FILE) if environment.get(variable, "").strip()), "")


def credentials_of_file(file: str | Path, option: str) -> list[Auth]:
    """Return the credentials in a file, which ``option`` names.

    Raises: InvalidOptionError: the file cannot be read, or contains no credentials. The error does not repeat its text.
    """
    where = f"{option} {file}"
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        msg = f"{where} cannot be read here: {type(error).__name__}: {error.strerror}"
        raise InvalidOptionError(msg) from None
    except UnicodeDecodeError:
        msg = f"{where} is not UTF-8 text"
        raise InvalidOptionError(msg) from None
    if not text:
        msg = f"{where} is empty; write digest:USER:PASSWORD or sasl:USER:PASSWORD into it"
        raise InvalidOptionError(msg)
    return _parsed(text, where)


def _parsed(text: str, where: str) -> list[Auth]:
    try:
        return Auth.parse_all(text)
    except InvalidOptionError as error:
        msg = f"{where}: {error}"
        raise InvalidOptionError(msg) from None

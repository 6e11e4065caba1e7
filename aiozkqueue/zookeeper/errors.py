"""The errors of a ZooKeeper client.

ZooKeeperError
├── ConnectionLossError      the connection was lost during the request, which may or may not have been applied
│   └── NotConnectedError    there was no connection, and the request was never sent
│       └── ThrottledError   a server that has too much to do has dropped the request
├── SessionExpiredError      the server has ended the session; its ephemerals are gone
├── ClientClosedError        this client, and the queue session that uses it, has been closed
├── AuthFailedError          the server refused the credentials; the client has given up
├── RequestTooLargeError     the request exceeds the server's limit and was not sent
├── ProtocolError            the server sent data that violates the protocol
│   └── UnsupportedServerError   the server does not know a request, as it is older than ZooKeeper 3.6
├── ServerError              an error code of the server without its own class
├── NoNodeError · NodeExistsError · BadVersionError · NotEmptyError · NoAuthError
│   ├── QuotaExceededError   (NoAuthError) an enforced quota of ZooKeeper does not allow it
│   ├── InvalidAclError      (NoAuthError) the servers do not support the ACL of a new znode
│   └── LocalSessionError    (NoAuthError) the session may not have locks, because it is local to its server
└── MultiError               a multi was refused as a whole; names the first operation that failed and the error
"""

from __future__ import annotations

from typing import Final

from aiozkqueue.errors import AccessDeniedError, SessionClosedError


class ZooKeeperError(Exception):
    """The base of all errors of this package."""


class ConnectionLossError(ZooKeeperError):
    """The connection was lost during the request, which may or may not have been applied."""


class NotConnectedError(ConnectionLossError):
    """There was no connection when the request was made: it has not been sent."""


class ThrottledError(NotConnectedError):
    """The server had too much to do, and dropped the request (``throttledOpWaitTime``): it has not been applied."""


class SessionExpiredError(ZooKeeperError):
    """The server has ended the session, or a newer session has taken its place."""


class ClientClosedError(ZooKeeperError, SessionClosedError):
    """The client has been closed; the callers of all operations in flight receive this error."""


class AuthFailedError(ZooKeeperError, AccessDeniedError):
    """The server refused the credentials; every operation raises this error."""


def refuses_credentials(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is that the server refused the credentials."""
    return isinstance(error, AuthFailedError) or (error is not None and isinstance(error.__cause__, AuthFailedError))


class RequestTooLargeError(ZooKeeperError):
    """The request is larger than the server accepts, which would drop the connection. It was not sent this time."""


class ProtocolError(ZooKeeperError):
    """The server sent bytes that violate the protocol; the connection is closed."""


class UnsupportedServerError(ProtocolError):
    """The server does not know a request that every ZooKeeper since 3.6 knows; the connection is closed."""


#: The names of ZooKeeper's error codes without their own class.
_NAMES: Final = {
    -1: "SYSTEMERROR",
    -2: "RUNTIMEINCONSISTENCY",
    -3: "DATAINCONSISTENCY",
    -4: "CONNECTIONLOSS",
    -5: "MARSHALLINGERROR",
    -6: "UNIMPLEMENTED",
    -7: "OPERATIONTIMEOUT",
    -8: "BADARGUMENTS",
    -12: "UNKNOWNSESSION",
    -13: "NEWCONFIGNOQUORUM",
    -14: "RECONFIGINPROGRESS",
    -100: "APIERROR",
    -108: "NOCHILDRENFOREPHEMERALS",
    -113: "INVALIDCALLBACK",
    -116: "CLOSING",
    -117: "NOTHING",
    -118: "SESSIONMOVED",
    -119: "NOTREADONLY",
    -121: "NOWATCHER",
    -122: "REQUESTTIMEOUT",
    -123: "RECONFIGDISABLED",
}


class ServerError(ZooKeeperError):
    """An error code of the server without its own class."""

    def __init__(self, code: int, path: str | None = None) -> None:
        name = _NAMES.get(code, "a code that is unknown to this program")
        super().__init__(f"ZooKeeper error {code} ({name})" + (f" at {path}" if path else ""))
        self.code = code
        self.path = path


class NodeError(ZooKeeperError):
    """The server refused an operation because of the state of one znode."""

    sentence = "refused"

    def __init__(self, path: str | None = None) -> None:
        super().__init__(f"{path or 'znode'}: {self.sentence}")
        self.path = path


class NoNodeError(NodeError):
    """There is no such znode."""

    sentence = "no such znode"


class NodeExistsError(NodeError):
    """The znode to create already exists."""

    sentence = "the znode exists already"


class BadVersionError(NodeError):
    """The znode's version differs from the one that the operation requires."""

    sentence = "the znode has another version"


class NotEmptyError(NodeError):
    """The znode to delete has children."""

    sentence = "the znode has children"


class NoAuthError(NodeError):
    """The znode's ACL does not allow this."""

    sentence = "not allowed by the znode's ACL"
    advice = "use the credentials of a user whom the ACL allows"
    """The remedy, for the reader of the error."""


class QuotaExceededError(NoAuthError):
    """A quota of a znode above does not allow this, and the servers enforce it (``enforceQuota``).

    As for an ACL, the same request is refused until an administrator of the servers changes something.
    """

    sentence = "refused by an enforced quota of ZooKeeper"
    advice = "raise the quota with setquota of zkCli.sh, or delete dead letters or other data that counts against it"


class InvalidAclError(NoAuthError):
    """The servers do not support the ACL that the session gives to new znodes."""

    sentence = "refused because the servers do not support the ACL of the new znode"
    advice = "give connect() an acl with schemes and ids that the servers support"


class LocalSessionError(NoAuthError):
    """The session is local to its server, which does not let it create ephemeral znodes, such as locks."""

    sentence = "refused because this session is local to its server"
    advice = "set localSessionsUpgradingEnabled=true on the servers"


class MultiError(ZooKeeperError):
    """A multi was refused, and nothing was applied. The server reports only the first operation that failed."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(f"operation {index} of the multi: {error}")
        self.index = index
        self.error = error

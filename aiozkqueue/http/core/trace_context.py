"""The trace of a request, which continues with its messages: the headers of W3C Trace Context."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: A list of ``key=value``; longer ones need not be passed on.
_STATE: Final = re.compile(r"[ -~\t]{1,512}")


def trace_context(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers for a request's messages: those of its trace, unless this program itself traces the request.

    With OpenTelemetry's instrumentation, each put stores the context of its own span, which is in the same trace.
    """
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is not None and tracing.get_current_span().get_span_context().is_valid:
        return {}
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not _PARENT.fullmatch(parent):
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if _STATE.fullmatch(state) else {})

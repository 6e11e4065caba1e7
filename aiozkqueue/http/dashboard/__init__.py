"""The dashboard: pages rendered on the server, with the same keys and permissions as the service.

Viewing a queue needs the permission ``get_status``, reading payloads needs ``poll``, and changes need ``manage``. The
user enters a key once, on the sign-in page. It is stored in a cookie that scripts cannot read; see `sign_in`. The pages
work without JavaScript; with JavaScript, they update themselves.
"""

from __future__ import annotations

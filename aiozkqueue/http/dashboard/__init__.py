"""The dashboard: pages rendered here, for people, with the same keys and permissions as the service.

Looking needs ``get_status`` on a queue, a payload ``poll``, and whatever changes something ``manage``. A key is given
once, on the page to sign in, and is in a cookie that no script reads; see `sign_in`. The pages work without
JavaScript; with it, they keep themselves up to date.
"""

from __future__ import annotations

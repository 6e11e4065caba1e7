"""The dashboard: pages rendered on the server, with the same keys and permissions as the service.

Viewing a queue needs the permission ``get_status``, reading payloads needs ``poll``, and changes need ``manage``. The
pages of the servers and of their findings need ``get_status`` on all queues. The user enters a key once, on the sign-in
page. It is stored in a cookie that scripts cannot read; see `web.sign_in`.

`routes` is the table of the pages. ``pages`` has a module for each of them, ``readings`` reads their contents, and
``web`` has the parts that they share: the visitor, the forms, the templates. The pages work without JavaScript, except
for the charts; with JavaScript, they update themselves. All visitors of a server share its readings, so the number of
open browsers does not change the requests to ZooKeeper.
"""

from __future__ import annotations

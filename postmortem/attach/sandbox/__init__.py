"""How a program is kept from writing to the user's files.

`overlay` redirects what it writes, `landlock` denies it; `stages` puts a process into either, without network.
"""

from __future__ import annotations

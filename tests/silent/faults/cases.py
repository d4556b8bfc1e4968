"""The cases of a silent fault: programs that have it, and healthy ones that look like it.

Each is a function that returns the source of a small training, complete and fast. `@blamed(Kind, at="text")`: the fault
is found, and in the line that contains `at`. `@quiet(Kind)`: nothing is found at all, by any fault.
"""

from __future__ import annotations

from tests.cases import case

blamed, quiet = case("blamed"), case("quiet")

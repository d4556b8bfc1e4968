"""What every registered reader promises, whatever it reads."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmortem.readers import READERS
from tests.cases import cases_of

ALL = list(READERS)
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def usual_name(reader: type) -> str:
    """The name that the reader's own test file declares with ``@usual_name``.

    A fixture, as that file is imported here: its own tests of hypothesis may not be made within one that runs.
    """
    (name,) = [case.make() for case in cases_of(reader) if case.kind == "usual_name"]
    return str(name)


def check(reader: type, path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    assert isinstance(reader.claims(path, data[:4096]), bool)  # type: ignore[attr-defined]
    reading = reader.read(path)  # type: ignore[attr-defined]
    points = reading.points
    assert len(points.code) == len(points.step) == len(points.value) == len(points.wall_time) == len(points.rank)
    assert all(p.what and p.path == str(path) for p in reading.problems)
    assert all(0 <= c < len(points.tags) for c in points.code)
    assert all(count > 0 for count in reading.skipped.values())


def test_all_load() -> None:
    """No reader of the package fails to load."""
    assert READERS.broken == []


@pytest.mark.parametrize("reader", ALL, ids=lambda r: r.kind)
class TestEveryReader:
    def test_it_claims_its_usual_name(self, reader: type, usual_name: str, tmp_path: Path) -> None:
        """The declared name is one that the reader takes, at least with the content that `head` shows."""
        path = tmp_path / usual_name
        path.parent.mkdir(parents=True, exist_ok=True)
        own = [case.make() for case in cases_of(reader) if case.kind == "usual_content"]
        for content in own:
            path.write_bytes(content)
        text = b"step 1 loss 2\n"
        rows, history = b'{"step": 1, "loss": 2}\n', b'{"loss": [2, 1]}'
        monitor = b"timestamp, utilization.gpu [%]\n"
        table = b"step,loss\n1,2\n"
        packed = (gzip.compress(text), gzip.compress(table))
        heads = (table, rows, history, text, *packed, *(content[:4096] for content in own), b"run_id: 0a1b\n", monitor)
        assert any(reader.claims(path, head) for head in heads)  # type: ignore[attr-defined]

    def test_its_page(self, reader: type) -> None:
        """The docstring says what is read."""
        assert len((reader.__doc__ or "").split()) > 10

    @QUICK
    @given(data=st.one_of(st.binary(max_size=300), st.text(max_size=100).map(lambda t: t.encode("utf-16"))))
    def test_any_bytes(self, reader: type, usual_name: str, tmp_path: Path, data: bytes) -> None:
        """Random bytes and UTF-16 text under its usual name raise nothing."""
        check(reader, tmp_path / usual_name, data)

    @pytest.mark.parametrize(
        "data", [b"", b"\n", b"\0" * 5000, b"\xff\xfe", b"[" * 5000, b'{"a":' * 5000, b",,,\n,,\n", b"nan" * 999]
    )
    def test_odd_bytes(self, reader: type, usual_name: str, tmp_path: Path, data: bytes) -> None:
        """Empty, hollow and absurd files raise nothing."""
        check(reader, tmp_path / usual_name, data)

    def test_what_cannot_be_opened(self, reader: type, tmp_path: Path) -> None:
        """A path that is gone, or a folder, is an OSError, which the caller turns into a Problem."""
        for path, error in ((tmp_path / "gone", FileNotFoundError), (tmp_path, IsADirectoryError)):
            with pytest.raises(error):
                reader.read(path)  # type: ignore[attr-defined]

"""Reads W&B transaction logs. What reads their records is imported with the first one: it takes a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from postmortem.readers import reader
from postmortem.readers.wandb import history as history  # registers its reader
from postmortem.readers.wandb import summary as summary  # registers its reader

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.reading import Reading

_MAGIC = b":W&B"


@reader
class WandbOffline:
    """W&B runs as the client writes them to disk (``run-ID.wandb``), offline or online; the SDK is not needed.

    The points come from the history, with `_timestamp` as wall time; config, summary, console output, the exit code
    and the run's identity are kept. The step is the column that `define_metric(…, step_metric=…)` declared for all tags
    or for those of most rows, or a counter column of the history (global_step, iteration, …), if its values do count;
    else W&B's own `_step`, which counts calls of `log`. A nested key ["a", "b"] becomes "a.b". Histograms, images,
    other media and text values are counted. The file is a log of checksummed chunks; damage costs only the records it
    touches.

    Formats: wandb/proto/wandb_internal.proto and core/pkg/leveldb in github.com/wandb/wandb.
    """

    kind: ClassVar[str] = "wandb"
    priority: ClassVar[int] = 10

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file with the suffix .wandb or W&B's magic bytes."""
        return path.suffix == ".wandb" or head.startswith(_MAGIC)

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole transaction log."""
        from postmortem.readers.wandb.transaction_log import TransactionLog

        return TransactionLog(path).read()

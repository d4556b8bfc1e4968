"""Logs in other languages, and rows that name the data they are of: they read as English ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem

_TRAIN, _HELD_OUT = range(10, 401, 10), range(100, 401, 100)

# (rows of the training, rows of the evaluation)
LOGS = {
    "German": (
        "Schritt {s}/400: Verlust {a} Lernrate 1e-3 Gradientennorm 0.{s}",
        "Prüfung Schritt {s}: Verlust {b}",
    ),
    "French": (
        "étape {s}/400 | perte = {a} | taux d'apprentissage = 0.001 | norme_grad = 0.{s}",
        "validation étape {s} | perte = {b}",
    ),
    "Spanish": ("paso {s} pérdida {a} tasa 0.001 norma_grad 0.{s}", "validación paso {s} pérdida {b}"),
    "Italian": ("passo {s} perdita {a} tasso 0.001 norma_grad 0.{s}", "validazione passo {s} perdita {b}"),
    "Portuguese": (
        "iteração {s} perda {a} taxa de aprendizado 0.001 norma do gradiente 0.{s}",
        "validação iteração {s} perda {b}",
    ),
    "Russian": (
        "Эпоха {e} шаг {s} потери {a} скорость обучения 0.001 норма градиента 0.{s}",
        "Валидация: эпоха {e} потери {b}",
    ),
    "Chinese": (
        "[2026-06-01 10:00:00] 第{e}轮 第{s}步 损失：{a} 学习率：0.001 梯度范数：0.{s} 耗时：0.2秒",
        "[2026-06-01 10:00:00] 验证 第{e}轮 损失：{b}",
    ),
    "Japanese": (
        "エポック {e} ステップ {s} 損失: {a} 学習率: 0.001 勾配ノルム: 0.{s}",
        "エポック {e} 検証損失: {b}",
    ),
    "Korean": ("에폭 {e} 스텝 {s} 손실: {a} 학습률: 0.001 기울기 노름: 0.{s}", "에폭 {e} 검증 손실: {b}"),
}
SPLITS = {
    "at": ("Apr 11 06:01:04 | STEP {s:5d} | loss={a}", "Apr 11 06:01:25 | EVAL @ {s} | loss={b} | top-1=0.64"),
    "after": ("step {s}: loss {a}", "test after {s}: loss {b}"),
    "key": ("kind=train epoch={e} step={s} bce={a}", "kind=valid epoch={e} step={s} bce={b} f1=0.6"),
    "word and step": ("TRAIN {s:6d} loss={a} lr=1e-3", "VALID {s:6d} loss={b}"),
    "head": ("step {s}: loss {a}", "  -- holdout: loss {b}  accuracy 0.7"),
    "symbol": ("batch {s} of 400 · loss {a} · top1 3.9%", "held-out · loss {b}"),
}


def _load(tmp_path: Path, train: str, held_out: str) -> postmortem.Run:
    lines = []
    for s in _TRAIN:
        loss, e = 2 - s / 300, 1 + (s - 1) // 100
        lines.append(train.format(s=s, e=e, a=f"{loss:.4f}"))
        if s in _HELD_OUT:
            lines.append(held_out.format(s=s, e=e, b=f"{loss + 0.1:.4f}"))
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return postmortem.load(path)


def _steps(run: postmortem.Run, role: str) -> list[int]:
    frame = run.frame
    return [int(s) for s in frame[frame["tag"].map(run.roles) == role]["step"]]


@pytest.mark.parametrize("language", LOGS)
def test_languages(tmp_path: Path, language: str) -> None:
    """Every language gives the loss, the rate and the norm of the training, and the loss of the evaluation."""
    run = _load(tmp_path, *LOGS[language])
    for role in ("loss", "lr", "grad_norm"):
        assert _steps(run, role) == list(_TRAIN), role
    by_step = "{s}" in LOGS[language][1]
    assert _steps(run, "val_loss") == (list(_HELD_OUT) if by_step else [1, 2, 3, 4]), "rows of an epoch stand at it"


@pytest.mark.parametrize("form", SPLITS)
def test_rows_that_name_their_data(tmp_path: Path, form: str) -> None:
    """The values of an evaluation are no points of the training's series, though both print the same name."""
    run = _load(tmp_path, *SPLITS[form])
    assert _steps(run, "loss") == list(_TRAIN)
    assert _steps(run, "val_loss") == list(_HELD_OUT)


def test_a_head_does_not_rename_what_names_its_data(tmp_path: Path) -> None:
    """A row that begins with a word for held-out data, and names training and held-out values, keeps both."""
    run = _load(tmp_path, "step {s} lr 0.1", "Eval step {s}: train_loss {b} val_loss {b}")
    assert _steps(run, "loss") == list(_HELD_OUT)
    assert _steps(run, "val_loss") == list(_HELD_OUT)

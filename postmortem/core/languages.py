"""Words of other languages for what a training logs, so that such a log reads as an English one does.

German, French, Spanish, Italian, Portuguese, Russian, Chinese (both scripts), Japanese and Korean. All are written as
`without_accents` gives them; German ones with ae, oe, ue too. The English words stand where they are used: roles in
`roles.py`, counters in the readers.
"""

from __future__ import annotations

import unicodedata

from postmortem.core.patterns import later

_ACCENTS = later("[\u0300-\u036f]+")


def without_accents(text: str) -> str:
    """``Prüfung`` as ``Prufung``, ``époque`` as ``epoque``, ``ещё`` as ``еще``; other scripts stay as they are."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))


STEPS = (
    *("schritt", "schritte", "trainingsschritt"),
    *("etape", "etapes", "pas"),
    *("paso", "pasos", "etapa"),
    *("passo", "passi", "passos"),
    *("шаг", "шаги", "шагов"),
    *("步", "步骤", "步驟", "步数", "步數", "训练步数", "訓練步數"),
    *("ステップ", "ステップ数"),
    *("스텝", "단계"),
)
ITERATIONS = (
    *("iterationen", "iteracion", "iteraciones", "iterazione", "iterazioni", "iteracao", "iteracoes"),
    *(
        "итерация",
        "итерации",
        "итер",
        "迭代",
        "迭代次数",
        "迭代次數",
        "イテレーション",
        "反復",
        "反復回数",
        "이터레이션",
        "반복",
    ),
)
GLOBAL_STEPS = (
    *("globaler_schritt", "pas_global", "paso_global", "passo_globale", "passo_global", "глобальный_шаг"),
    *("全局步数", "全局步數", "グローバルステップ"),
)
BATCHES = ("stapel", "lot", "lots", "lote", "lotes", "lotto", "батч", "пакет", "批次", "批", "バッチ", "배치")
EPOCHS = (
    *("epoche", "epochen", "epoque", "epoques", "epoca", "epocas", "epoche", "эпоха", "эпохи", "эпох"),
    *("轮", "轮次", "轮数", "輪次", "訓練輪次", "训练轮次", "训练轮数", "周期", "世代", "エポック", "에폭", "에포크"),
)
# readers compare the words for the data as they are printed: with accents, too
HELD_OUT = (
    *("validierung", "prüfung", "prufung", "pruefung", "auswertung", "évaluation"),
    *("validación", "validacion", "evaluación", "evaluacion", "prueba", "validazione", "valutazione"),
    *("validação", "validacao", "avaliação", "avaliacao", "teste"),
    *("валидация", "валид", "вал", "проверка", "тест", "оценка"),
    *("验证", "驗證", "验证集", "驗證集", "测试", "測試", "测试集", "測試集", "评估", "評估"),
    *("検証", "評価", "テスト", "검증", "평가", "테스트"),
)
TRAINED = (
    *("anpassung", "entraînement", "entrainement", "apprentissage", "entrenamiento", "addestramento", "allenamento"),
    *("treino", "treinamento", "обучение", "трен", "训练", "訓練", "训练集", "訓練集", "学習", "훈련", "학습"),
)

# patterns of names, matched against `roles.plain_name`
HELD_OUT_NAMES = (
    r"(?:^|[ /])(?:validierung|pr(?:u|ue)f|auswertung|validacion|evaluacion|prueba|validazione|valutazione|validacao"
    r"|avaliacao|teste\b|валид|вал\b|провер|тест|оценк)|验证|驗證|测试|測試|评估|評估|検証|評価|テスト|검증|평가|테스트"
    r"|^test(?=verlust|genau)"
)
LOSS = (
    r"(?:(?<!daten)(?<!paket)verlust(?:e|wert|funktion)?\b|\bpertes?\b|\bperdidas?\b|\bperdit[ae]\b|\bperdas?\b"
    r"|\b(?:потер[яиь]\w*|лосс|ошибка (?:на )?(?:обуч|трен|валид|тест)\w*)\b|损失|損失|ロス|손실|로스)"
)
RECORDS = r"beste[nrs]?|kleinste[rs]?|meilleure?s?|mejor|migliore|melhor|лучш\w{2,3}|минимальн\w{2,3}|minim[oa]"
BEST_LOSS = r"(?:最佳|最优|最優|最小|最低|最良|最고|최저|최소) ?(?:\w+ ?)?(?:损失|損失|ロス|손실)"
GRADIENT = r"gradient(?:en|e|es|i)|градиент\w{0,3}|梯度|勾配|그래디언트|기울기"
NORM = r"norm(?:en|e|as?)|норм[аы]|范数|範數|ノルム|노름"
OF_THE = r"(?:(?:du|des?|del|della|dei|do|dos|des|vom) )*"
LEARNING_RATE = (
    r"lern(?:rate|schrittweite)|\btaux (?:d['’ ])? ?app\w*|\btasa (?:de )?apr\w*|\btasso (?:di )?appr\w*"
    r"|\btaxa (?:de )?apr\w*|(?:скорость|темп|шаг) обучения|(?:学习|學習|学習)(?:率|速率)|학습 ?[률율]"
)
BARE_RATES = r"rate|taux|tasa|tasso|taxa|скорость|速率|率"
ACCURACY = (
    r"genauigkeit|trefferquote|exactitude?\b|\bprecision[e]?\b|\bprecisao\b|accuratezza|\bacuracia\b|точность"
    r"|准确率|準確率|正确率|正確率|精度|正解率|정확도"
)
PERPLEXITY = r"perplexit|perplejidad|perplessita|перплексия|困惑度|パープレキシティ"
TIME = (
    r"(?:^|[ /])(?:schritt ?zeit|(?:zeit|dauer|temps|duree|tiempo|duracion|tempo|durata|duracao|время|длительность)"
    r"(?: (?:pro|je|par|por|per|al|на) \w{1,12})?|время шага)(?: ?\(.*)?$|(?:用时|耗时|用時|耗時|所要時間|소요 ?시간)"
    r"|(?:^|[ /])(?:时间|時間|시간)(?: ?\(.*)?$"
)
MEMORY = r"(?:^|[ /])(?:gpu )?(?:speicher|memoire|memoria|память|видеопамять)\b|显存|顯存|内存|メモリ|메모리"
THROUGHPUT = (
    r"(?:beispiele|proben|muster|echantillons?|ech|muestras?|campioni|amostras?|jetons?|tokens?|примеров|образцов"
    r"|样本|樣本|サンプル|샘플) ?(?:/|pro|par|por|al|в) ?(?:s|sek\w{0,6}|sec\w{0,6}|seg\w{0,6}|с|сек\w{0,4}|秒|초)\b"
)
REWARD = r"(?:^|[ /])(?:belohnung|recompensa|recompense|ricompensa|награда)(?:$|[ /])|奖励|獎勵|報酬|보상"

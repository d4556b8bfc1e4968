"""Rows that hold no metrics, whatever numbers they have: code, warnings, prompts, settings, summaries of a machine."""

from __future__ import annotations

import re

INERT = re.compile(
    r"\s*+(?:(?:\([\w.\-]{1,60}\) )?[\w.\-]{1,60}@[\w.\-]{1,80}:[~/][^\s#$]{0,200}[#$] "  # a shell prompt
    r"|File \"|Traceback|wandb: |\^|warnings?\.warn|During handling|raise |The above exception"
    r"|[\w.]{0,80}(?:Error|Exception|Warning|Interrupt)\b|\S{1,200}\.py:\d+: \w*Warning"
    r"|\(\d{1,4}\): \w{1,60}(?: = |\()"  # settings and modules, numbered: "(33): optimizer_lr = 0.0001"
    r"|[\w.\-]{1,120}+:\d+:\d+ (?:\[\d+\] )?\w{0,20} ?(?:NCCL|RCCL) (?:INFO|WARN|TRACE)"  # NCCL: node:pid:tid [rank]
    r"|engine/trainer: \w+=\S+, \w+="  # Ultralytics prints its settings
    r"|\w+Thr(?:ead)?\w*:\d+ +\[\w+\.py:|(?:CPU|Run|Turnaround) time :\s{2}"  # W&B's own log, LSF's summary
    r"|(?:Max|Average) (?:Memory|Swap|Processes|Threads) :\s{2}"
    r"|[A-Za-z_]\w{0,60}=[^\s,=]{1,80},\s*+$|(?i:config(?:uration)?|arg(?:ument)?s|hyper-?param(?:eter)?s|hparams|settings|options|flags)\s*+:\s"
    r"|(?:\w{1,40}(?: ?[:=] ?|\s)){0,3}\w{0,60}(?:Namespace|Args|Arguments|Config|Options|Settings)\(\w+=)"
    r"|\s{2,}+(?:(?:return|raise|assert|yield|await|elif|del) \S"  # code, as tracebacks quote it
    r"|(?:if|for|while|with) .*(?:: (?:return|raise|break|continue|pass)\b|:\s*+$)"
    r"|[a-z_][\w.]*+(?:\[[^\]]{0,80}+\])?\((?=[^:]*[),(]\s*+$)"
    r"|[\w.]++ ?[-+*/]?= ?(?:[a-zA-Z_][\w.]*+ ?[*+@/(]|[\d.e\-]++ ?[*@] ?[a-zA-Z_]))"
)

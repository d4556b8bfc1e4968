#!/bin/bash
set -x
python train.py --steps 180 --lr 3e-3

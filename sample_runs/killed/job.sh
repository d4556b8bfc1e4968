#!/bin/bash
#SBATCH --job-name=alphabet --output=slurm-%j.out --mem=2G
echo "SLURM_JOB_ID=48151623 on node01"
python train.py
echo "exit code $?"

#!/bin/bash
#SBATCH --job-name=batchgen
#SBATCH --array=0-7
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# At the time limit Slurm sends SIGTERM, and some seconds later SIGKILL: either way the next run goes on from there.
#   job=$(sbatch --parsable slurm.sh requests.jsonl answers.jsonl)
#   sbatch --dependency=afterok:$job --wrap "batchgen merge answers.jsonl"
set -euo pipefail
export BATCHGEN_STALL_TIMEOUT=${BATCHGEN_STALL_TIMEOUT:-1800}
exec batchgen run-batch "$1" -o "$2" --num-shards auto --threads "${SLURM_CPUS_PER_TASK:-1}"

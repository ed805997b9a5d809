#!/bin/bash
#SBATCH --job-name=serve
#SBATCH --nodes=1
#SBATCH --gpus=4
#SBATCH --time=4:00:00
#SBATCH --output=out/%x.%j.out

echo SERVING ON $HOSTNAME

module reset
module load site/nccl

source .venv/bin/activate

HF_HOME=/projects/shared/hf
MODEL_NAME="openai/gpt-oss-120b"
export TIKTOKEN_ENCODINGS_BASE="$HF_HOME/encodings"

srun \
    --nodes=$SLURM_NNODES \
    --gpus=$SLURM_GPUS \
    --cpus-per-task 72 \
    --ntasks-per-node 1 \
    vllm serve $MODEL_NAME \
    --served-model-name $MODEL_NAME \
    --host 0.0.0.0 \
    --port 8000 \
    --max-num-seqs 512 \
    --tensor_parallel_size=4

